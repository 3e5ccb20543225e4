from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torchvision.models import resnet18

from launcher.algorithms.layer_freezing import frozen_layers, layers_of
from launcher.config.compose import compose
from launcher.data.batch import Moment
from launcher.optimizers.sgd import DecoupledSGD
from launcher.rank.group import Ranks
from launcher.training import trainer
from tests.networks import tiny
from tests.trainers import EARLY, SMALL
from tests.two_ranks import on_ranks


@pytest.mark.parametrize(("progress", "expected"), [(0.0, 0), (0.5, 0), (0.55, 3), (0.75, 16), (0.9, 25), (1.0, 32)])
def test_the_frozen_part_grows_linearly(progress: float, expected: int) -> None:
    assert frozen_layers(41, progress, start=0.5, final_fraction=0.8) == expected


def test_the_first_layers_stop_and_the_last_always_learns(bound: Callable[..., Any], batch: Callable[..., Any]) -> None:
    model = resnet18(num_classes=10)
    layers = layers_of(model)
    assert layers[0] is model.conv1
    assert layers[-1] is model.fc
    assert len(layers) == 41
    algorithm = bound("layer_freezing", final_fraction=0.99)
    # note: with momentum and decay, so that a gradient of zero would still move the weights
    optimizer = DecoupledSGD([{"params": list(model.parameters()), "weight_decay": 0.1}], 0.1, 0.9, 0.0, False)
    for step, frozen in ((0, 0), (75, 19), (99, 38)):
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        made = batch(side=32, step=step)
        algorithm.before_step(model, made.moment)
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(made.images), made.targets).backward()
        optimizer.step()
        still = [all(torch.equal(p, before[n]) for n, p in named(model, layer)) for layer in layers]
        assert still == [True] * frozen + [False] * (41 - frozen)


def named(model: torch.nn.Module, layer: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    own = {id(p) for p in layer.parameters(recurse=False)}
    return [(name, p) for name, p in model.named_parameters() if id(p) in own]


def test_a_resumed_run_freezes_the_same(bound: Callable[..., Any], batch: Callable[..., Any]) -> None:
    models = [resnet18(num_classes=10) for _ in range(2)]
    for model, steps in zip(models, (range(0, 90, 10), [80]), strict=True):
        algorithm = bound("layer_freezing")
        for step in steps:
            algorithm.before_step(model, batch(side=8, step=step).moment)
    wanted = [[p.requires_grad for p in model.parameters()] for model in models]
    assert wanted[0] == wanted[1]
    assert not all(wanted[0])


def _learn(rank: int, algorithm: str, folder: Path) -> None:
    """Steps on three ranks; beside each the average of what every rank's own network gives."""
    torch.set_num_threads(1)
    trainer.build_model = tiny
    config = compose([*SMALL, "batch_size=12", "schedule.warmup=0ba", f"algorithms=[{algorithm}]", *EARLY[algorithm]])
    step = trainer.build_trainer(config.config, Ranks(rank, 3, rank, 3, torch.device("cpu"))).train_step
    sets = []
    for number in range(6):
        images = torch.from_numpy(
            np.random.default_rng([number, rank]).integers(0, 256, (4, 3, 32, 32), dtype=np.uint8)
        )
        alone, labels = copy.deepcopy(step.model).requires_grad_(), torch.arange(4)
        step(images, labels, np.arange(4), Moment(0, number // 2, number, 6, rank)).report()
        F.cross_entropy(alone(step.normalize(images)), labels).backward()
        exchanged = sum(bucket.buffer().numel() for bucket in step.network.reducer._get_zeros_like_grad_buckets())
        assert exchanged == sum(p.numel() for p in step.model.parameters() if p.requires_grad)
        sets.append(step.learning())
        for ours, own, learns in zip(step.model.parameters(), alone.parameters(), sets[-1], strict=True):
            assert own.grad is not None
            dist.all_reduce(own.grad)
            if learns:
                torch.testing.assert_close(ours.grad, own.grad / 3)
            else:
                assert ours.grad is None
                assert torch.equal(ours, own)
    (folder / f"{rank}").write_text(str(len(set(sets))))


@pytest.mark.parametrize(("algorithm", "sets"), [("layer_freezing", 6), ("backbone_freezing", 2)])
def test_ranks_average_and_exchange_what_learns_and_nothing_else(algorithm: str, sets: int, tmp_path: Path) -> None:
    on_ranks(3, _learn, algorithm, tmp_path)
    assert [int((tmp_path / f"{rank}").read_text()) for rank in range(3)] == [sets] * 3
