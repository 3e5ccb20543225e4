"""The loader's crops have the size of their step, as progressive resizing plans it."""

from pathlib import Path

import pytest

from launcher.config.compose import compose
from launcher.plan.plan import Plan

from .conftest import make_loaders, same, stream, words_for

GROWING = ("algorithms.progressive_resizing=on", "image.reference=32", "image.train_size=32", "epochs=6")
IN_LOADER = (*GROWING, "algorithms.progressive_resizing.where=loader")
EPOCHS = (1, 2, 3, 4, 5)
STEPS = 5


def plan(folder: Path, *words: str) -> Plan:
    return Plan(compose(words_for(folder, *words)).config, 1, 42)


def test_each_batch_has_the_size_of_its_step(image_folder: Path, loader: list[str]) -> None:
    expected = [plan(image_folder, *IN_LOADER).view(step) for step in range(STEPS, 6 * STEPS)]
    batches = stream(make_loaders(image_folder, *loader, *IN_LOADER), EPOCHS)
    assert [images.shape[-1] for images, _, _ in batches] == expected
    assert len(set(expected)) > 3


def test_resizing_on_the_device_loads_crops_of_full_size(image_folder: Path, loader: list[str]) -> None:
    batches = stream(make_loaders(image_folder, *loader, *GROWING), (0,))
    assert {images.shape[-1] for images, _, _ in batches} == {32}
    assert plan(image_folder, *GROWING).loaded_view(0) == 32


@pytest.mark.parametrize("epoch", [0, 3])
def test_pixels_are_those_of_a_run_at_that_size(image_folder: Path, loader: list[str], epoch: int) -> None:
    batches = stream(make_loaders(image_folder, *loader, *IN_LOADER), (epoch,))
    size = batches[2][0].shape[-1]
    alone = ["image.reference=32", f"image.train_size={size}", "epochs=6"]
    assert same([batches[2]], [stream(make_loaders(image_folder, *loader, *alone), (epoch,))[2]])


def test_a_resumed_run_continues_at_the_size_of_its_step(image_folder: Path, loader: list[str]) -> None:
    whole = stream(make_loaders(image_folder, *loader, *IN_LOADER), (3,))
    assert len({images.shape[-1] for images, _, _ in whole}) > 1
    assert same(whole[2:], stream(make_loaders(image_folder, *loader, *IN_LOADER), (3,), first=2))
