from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchvision.models import resnet18

from launcher.algorithms.base import Context
from launcher.algorithms.engine import Engine
from launcher.algorithms.layer_freezing import frozen_layers, layers_of
from launcher.config.compose import compose
from launcher.data.batch import Moment
from launcher.plan.plan import Plan
from launcher.rank.group import Ranks, distribute
from launcher.training.optimizers import DecoupledSGD
from tests.two_ranks import on_two_ranks


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


def _learn(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = compose(["epochs=10", "batch_size=8", "algorithms=[layer_freezing]"]).config
    engine = Engine(Context(Plan(config, 2, 80), 10))
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(6)])
    network = distribute(model, Ranks(rank, 2, rank, 2, torch.device("cpu")), bool(engine.changing_parameters))
    assert isinstance(network, DistributedDataParallel)
    gradients = {}
    for step in (0, 75, 99):
        images = torch.randn(4, 4, generator=torch.Generator().manual_seed(100 * step + rank))
        engine.before_step(model, Moment(0, 0, step, 100, rank))
        model.zero_grad(set_to_none=True)
        network(images).square().mean().backward()
        gradients[step] = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    torch.save({"gradients": gradients, "model": model.state_dict()}, folder / f"{rank}.pt")


def test_ranks_average_the_layers_that_still_learn(tmp_path: Path) -> None:
    on_two_ranks(_learn, tmp_path)
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(6)])
    model.load_state_dict(ranks[0]["model"])
    for step, frozen in ((0, 0), (75, 2), (99, 3)):
        model.zero_grad()
        for rank in range(2):
            images = torch.randn(4, 4, generator=torch.Generator().manual_seed(100 * step + rank))
            (model(images).square().mean() / 2).backward()
        for number, parameter in enumerate(model.parameters()):
            for result in ranks:
                gradient = result["gradients"][step][number]
                if number < 2 * frozen:
                    assert gradient is None
                else:
                    torch.testing.assert_close(gradient, parameter.grad)
