from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch

from launcher.algorithms.base import Algorithm, Setting
from launcher.algorithms.engine import Engine
from launcher.config.algorithms import Algorithms
from launcher.plan.order import NORMALIZE, ORDER

NAMES = [field.name for field in fields(Algorithms)]


@pytest.mark.parametrize("name", NAMES)
def test_an_algorithm_overrides_exactly_the_points_of_the_table(name: str) -> None:
    bound = importlib.import_module(f"launcher.algorithms.{name}").ALGORITHM
    assert issubclass(bound, Algorithm)
    overridden = {point for point in ORDER if getattr(bound, point) is not getattr(Algorithm, point)}
    assert overridden == {point for point, names in ORDER.items() if name in names}


def test_the_table_names_algorithms_only() -> None:
    assert {name for names in ORDER.values() for name in names} == {*NAMES, NORMALIZE}
    assert all(len(set(names)) == len(names) for names in ORDER.values())


def test_the_batch_passes_normalisation_at_its_place(
    setting: Callable[..., Setting], batch: Callable[..., Any]
) -> None:
    made = setting("algorithms=[mixup,label_smoothing,progressive_resizing]", "algorithms.mixup.alpha=1.0")
    engine = Engine(made.plan.config.algorithms, made)
    seen: list[torch.Size] = []

    def normalize(images: torch.Tensor) -> torch.Tensor:
        seen.append(images.shape)
        return images.float() / 255

    loaded = batch(side=64).having(images=torch.randint(0, 256, (8, 3, 64, 64), dtype=torch.uint8))
    changed = engine.change_batch(loaded, torch.nn.Identity(), lambda x, y: x.mean(), normalize)
    assert seen == [(8, 3, 64, 64)]
    assert changed.images.shape == (8, 3, 32, 32)
    assert changed.targets.shape == (8, 10)
    torch.testing.assert_close(changed.targets.sum(1), torch.ones(8))


@pytest.mark.parametrize("step", [0, 50, 99])
@pytest.mark.parametrize(
    ("words", "first", "last"),
    [
        (["algorithms=[colout,progressive_resizing]"], 32, 64),
        (["algorithms=[colout,progressive_resizing]", "algorithms.colout.order=after_resizing"], 30, 60),
        (["algorithms=[colout]"], 60, 60),
        (["algorithms=[colout]", "algorithms.colout.order=after_resizing"], 60, 60),
        (["algorithms=[colout]", "algorithms.colout.columns=0.5", "algorithms.colout.rows=0.0"], 45, 45),
        (
            ["algorithms=[colout,progressive_resizing]", "algorithms.progressive_resizing.where=loader"],
            32,
            64,
        ),
    ],
)
def test_the_plan_knows_the_side_that_the_network_sees(
    words: list[str], first: int, last: int, step: int, setting: Callable[..., Setting], batch: Callable[..., Any]
) -> None:
    made = setting("image.reference=64", "image.train_size=64", *words)
    loaded = batch(side=made.plan.loaded_size(step), step=step)
    changed = Engine(made.plan.config.algorithms, made).change_batch(
        loaded, torch.nn.Identity(), lambda x, y: x.mean(), lambda images: images
    )
    height, width = changed.images.shape[-2:]
    assert made.plan.image_size(step) == round((height * width) ** 0.5)
    assert (made.plan.image_size(0), made.plan.image_size(99)) == (first, last)


def test_without_algorithms_nothing_happens(setting: Callable[..., Setting], batch: Callable[..., Any]) -> None:
    made = setting("algorithms=[]")
    engine = Engine(made.plan.config.algorithms, made)
    loaded = batch()
    assert engine.change_image is None
    assert engine.evaluation_weights(torch.nn.Identity()) is None
    assert engine.state_dict() == {}
    same = engine.change_batch(loaded, torch.nn.Identity(), lambda x, y: x.mean(), lambda images: images)
    assert torch.equal(same.images, loaded.images)
    assert engine.compute_gradients(loaded, torch.nn.Identity(), lambda b: torch.tensor(3.0)).item() == 3
