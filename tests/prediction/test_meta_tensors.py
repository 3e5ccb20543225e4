"""Steps on tensors without values against real steps, call by call, and the storages of their tensors."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from launcher.algorithms.base import Context
from launcher.algorithms.engine import Engine
from launcher.config.compose import compose
from launcher.data.batch import Moment
from launcher.plan.plan import plan_for
from launcher.prediction.meta_tensors import Shape, nothing_computed, storage_of
from launcher.prediction.trace import Call, Trace
from launcher.rank.group import Ranks
from launcher.training.trainer import build_step

SMALL = ("dataset=imagenet", "batch_size=4", "epochs=2", "schedule.warmup=1ep")
VIT = ("model=vit", "model.patch_size=16", "model.width=48", "model.heads=3", "model.depth=2")

CONVNEXT = ("recipe=mild", "model=timm", "model.architecture=test_convnext", "optimizer=lamb")


def calls(words: tuple[str, ...], *, real: bool) -> list[Call]:
    """Return the calls of the second step of a run."""
    plan = plan_for(compose([*words, *SMALL]).config, 1)
    classes = plan.config.dataset.classes
    step = build_step(plan, Ranks(0, 1, 0, 1, torch.device("cpu")), Engine(Context(plan, classes)))
    size = plan.loaded_view(0)
    with (nullcontext if real else nothing_computed)():
        images = torch.zeros(4, size, size, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
        labels = torch.zeros(4, dtype=torch.int64)
        for number in range(2):
            with Trace() as trace:
                step(images, labels, np.arange(4), Moment(seed=0, epoch=0, step=number, total_steps=plan.total_steps))
    return trace.calls


def assert_alike(calls: list[Call], expected: list[Call]) -> None:
    for number, (ours, theirs) in enumerate(zip(calls, expected, strict=True)):
        first, second = (
            (call.name, call.operations, call.elements, [*call.reads.values()], [*call.writes.values()])
            for call in (ours, theirs)
        )
        assert first == second, number


@pytest.mark.parametrize(
    "words",
    [
        ("recipe=hot", "model=resnet18", "image.train_size=64", "precision=fp32"),
        (*CONVNEXT, "image.train_size=128", "precision=bf16"),
        ("recipe=vit_s16", *VIT, "image.train_size=32", "precision=bf16"),
    ],
)
@pytest.mark.usefixtures("tiny_networks")
def test_a_step_without_values_makes_the_calls_of_a_real_one(words: tuple[str, ...]) -> None:
    assert_alike(calls(words, real=False), calls(words, real=True))


@pytest.mark.parametrize(
    ("layer", "shape", "learns"),
    [(partial(nn.Conv1d, 1, 1, 3, padding=1), (2, 1, 16), True), (partial(nn.BatchNorm2d, 6), (2, 6, 4, 4), False)],
    ids=["a convolution over one dimension", "images without gradients"],
)
def test_a_layer_makes_the_calls_of_a_real_one(
    layer: Callable[[], nn.Module], shape: tuple[int, ...], learns: bool
) -> None:
    recorded = []
    for mode in (nothing_computed, nullcontext):
        network, values = layer(), torch.zeros(shape, requires_grad=learns)
        with mode(), Trace() as trace:
            network(values).sum().backward()
        recorded.append(trace.calls)
    assert_alike(*recorded)


def test_a_view_shares_the_storage_of_its_base() -> None:
    weight = torch.arange(12.0)
    with nothing_computed():
        view = weight.view(3, 4)[1:].t()
        assert isinstance(view, Shape)
        assert storage_of(view) == storage_of(weight)
        assert storage_of(view.contiguous()) != storage_of(weight)
        assert (view.shape, view.stride(), view.storage_offset()) == ((4, 2), (1, 4), 4)
        view.unsqueeze_(0)
        weight.mul_(2)
        assert view.shape == (1, 4, 2)
    assert weight.tolist() == list(range(12))
    with pytest.raises(TypeError, match="without values"):
        view.sum()
