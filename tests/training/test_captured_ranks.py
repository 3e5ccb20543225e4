"""Captured steps of several ranks: one all-reduce of the gradients outside of the graphs, as DDP's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from launcher.config.compose import compose
from launcher.rank.group import Ranks
from launcher.training import captured, trainer
from launcher.training.captured import CapturedSteps
from launcher.training.trainer import Trainer, build_trainer
from tests.graphs import StandIn, StandInGraph
from tests.networks import tiny
from tests.trainers import EARLY, SIZE_FOR_BF16, SMALL, assert_same_state, steps
from tests.two_ranks import on_ranks


class Outside(TorchDispatchMode):
    """Counts the calls outside of graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += not (func.is_view or StandInGraph.replaying)
        return func(*args, **(kwargs or {}))


def losses_and_fewest_calls(run: Trainer) -> tuple[list[float], int]:
    """Train all steps; return their losses, and the calls of the step that has the fewest."""
    losses, calls = [], []
    while not run.is_done:
        with Outside() as mode:
            losses += steps(run, 1)
        calls.append(mode.calls)
    return losses, min(calls)


def with_a_constant(*arguments: Any) -> nn.Module:
    """Return a network with a parameter that never learns, such as the position embeddings of some of timm's."""
    network = tiny(*arguments)
    network.get_parameter("layer1.0.bn1.bias").requires_grad_(False)
    return network


def capture_on_ranks(rank: int, count: int, words: list[str]) -> None:
    """Compare captured steps, whose gradients one all-reduce averages, with those of DDP."""
    torch.set_num_threads(1)
    trainer.build_model, captured.WARMUP_STEPS = with_a_constant, 1
    ranks = Ranks(rank, count, rank, count, torch.device("cpu"))
    small = [*SMALL, "batch_size=12", "dataset.train_samples=24", "schedule.warmup=0ba", "precision=fp32", *words]
    plain = build_trainer(compose(small).config, ranks)
    trainer.why_not_captured = lambda *_: None  # note: as on a GPU
    run = build_trainer(compose([*small, "cuda_graphs=on"]).config, ranks)
    device = StandIn()
    run.train_step.capture(CapturedSteps(device, "on"))
    (ours, fewest), (theirs, usual) = (losses_and_fewest_calls(one) for one in (run, plain))
    assert 2 * fewest < usual
    assert device.captures > 0 < run.train_step.captured.replays
    if count == 2:
        assert ours == theirs
        assert_same_state(run, plain)
    # note: three gradients have another sum in another order, in bfloat16 by more
    assert ours == pytest.approx(theirs, rel=1e-2)
    if "launch.gradient_dtype=bfloat16" not in words:
        torch.testing.assert_close(*(list(one.weights().values()) for one in (run, plain)), rtol=1e-3, atol=1e-6)
    own = torch.cat([parameter.flatten() for parameter in run.train_step.model.parameters()])
    first = own.clone()
    dist.broadcast(first, src=0)
    assert torch.equal(first, own), "weights are equal on all ranks"


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize(
    "words",
    [
        ["recipe=mild", *EARLY["ema"]],
        ["algorithms=[sam,channels_last]", *EARLY["sam"], "launch.gradient_dtype=bfloat16"],
        ["algorithms=[sam,blurpool]", *EARLY["sam"], SIZE_FOR_BF16, "precision=bf16"],
    ],
)
def test_steps_of_several_ranks_are_captured_up_to_one_all_reduce(count: int, words: list[str]) -> None:
    on_ranks(count, capture_on_ranks, count, words)
