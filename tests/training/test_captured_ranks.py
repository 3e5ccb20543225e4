"""Captured steps of several ranks: gradients are averaged bucket by bucket during the backward pass."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from launcher.config.compose import compose
from launcher.errors import UserError
from launcher.rank.group import Ranks
from launcher.training import buckets, captured, checkpoint, trainer
from launcher.training.captured import CapturedSteps
from launcher.training.trainer import Trainer, build_trainer
from tests.graphs import StandIn, StandInGraph
from tests.networks import tiny
from tests.trainers import EARLY, SIZE_FOR_BF16, SMALL, assert_same_state, steps
from tests.two_ranks import on_ranks, on_two_ranks

pytestmark = pytest.mark.slow


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


def build_on_ranks(
    rank: int, count: int, words: list[str], model: Callable[..., nn.Module] = with_a_constant
) -> tuple[Trainer, Trainer]:
    """Return a run of eager steps, and one whose steps can be captured, of several buckets."""
    torch.set_num_threads(1)
    trainer.build_model, captured.WARMUP_STEPS = model, 1
    buckets.BUCKET_BYTES = 1 << 10, 1 << 13
    ranks = Ranks(rank, count, rank, count, torch.device("cpu"))
    small = [*SMALL, "batch_size=12", "dataset.train_samples=24", "schedule.warmup=0ba", "precision=fp32", *words]
    return build_trainer(compose(small).config, ranks), build_trainer(compose([*small, "cuda_graphs=on"]).config, ranks)


def assert_equal_on_ranks(run: Trainer) -> None:
    own = torch.cat([parameter.flatten() for parameter in run.train_step.model.parameters()])
    first = own.clone()
    dist.broadcast(first, src=0)
    assert torch.equal(first, own), "weights are equal on all ranks"


def sent_early(graph: StandInGraph) -> list[bool]:
    """Return of each collective of a graph whether the backward pass follows it."""
    last = max((n for n, one in enumerate(graph.calls) if "convolution_backward" in str(one.operation)), default=0)
    return [number < last for number, one in enumerate(graph.calls) if one.is_collective]


def capture_on_ranks(rank: int, count: int, words: list[str]) -> None:
    """Compare captured steps with eager ones."""
    plain, run = build_on_ranks(rank, count, words)
    device = StandIn()
    run.train_step.captured = CapturedSteps(device, "on")
    (ours, fewest), (theirs, usual) = (losses_and_fewest_calls(one) for one in (run, plain))
    assert device.captures > 0 < run.train_step.captured.replays
    collectives = [sent_early(graph) for graph in device.graphs if sent_early(graph)]
    assert collectives
    for of_graph in collectives:
        # note: the last bucket, and the flags
        assert of_graph == [True] * (len(of_graph) - 2) + [False] * 2
        assert len(of_graph) > 4
    assert 4 * fewest < usual, (fewest, usual)
    assert ours == theirs
    assert_same_state(run, plain)
    assert_equal_on_ranks(run)


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (2, ["recipe=mild", *EARLY["ema"], "device_batch_size=3"]),
        (3, ["recipe=mild", *EARLY["ema"]]),
        (3, ["algorithms=[sam,channels_last]", *EARLY["sam"], "launch.gradient_dtype=bfloat16"]),
        (2, ["algorithms=[sam,blurpool]", *EARLY["sam"], SIZE_FOR_BF16, "precision=bf16"]),
    ],
)
def test_steps_of_several_ranks_are_captured_with_their_collectives(count: int, words: list[str]) -> None:
    on_ranks(count, capture_on_ranks, count, words)


def resume_captured(rank: int, count: int, words: list[str], path: Path) -> None:
    """Compare a run of captured steps with one of eager steps, and with one that resumes in the middle."""
    runs = []
    for captures, saved in ((True, 3), (False, None), (True, None)):
        _, run = build_on_ranks(rank, count, words)
        if runs and captures:
            run.load_state_dict(checkpoint.load(path))
        if captures:
            run.train_step.captured = CapturedSteps(StandIn(), "on")
        if saved:
            steps(run, saved)
            state = run.state_dict()
            if rank == 0:
                checkpoint.save(state, path)
            dist.barrier()
        losses_and_fewest_calls(run)
        assert not captures or run.train_step.captured.replays > 0
        runs.append(run)
    whole, eager, resumed = runs
    assert_same_state(eager, whole)
    # note: a resumed rank has the statistics of rank 0
    weights = (run.train_step.model.parameters() for run in (resumed, whole))
    assert all(torch.equal(*pair) for pair in zip(*weights, strict=True))
    assert_equal_on_ranks(whole)


@pytest.mark.parametrize("count", [3, 4])
@pytest.mark.parametrize("words", [["recipe=mild", *EARLY["ema"]], ["algorithms=[sam]", *EARLY["sam"]]])
def test_captured_steps_resume_to_the_same_bits_as_eager_ones_have(
    count: int, words: list[str], tmp_path: Path
) -> None:
    on_ranks(count, resume_captured, count, words, tmp_path / "state.pt")


def failing_on_one_rank(rank: int, value: str) -> tuple[Trainer, Trainer]:
    """Return a run of eager steps, and one whose second rank cannot capture the all-reduce."""
    plain, run = build_on_ranks(rank, 2, ["recipe=mild", *EARLY["ema"]])
    device = StandIn()
    capture = device.capture

    def fail(function: Callable[[], Sequence[Tensor]]) -> tuple[StandInGraph, Sequence[Tensor]]:
        graph, outputs = capture(function)
        if sent_early(graph):
            raise RuntimeError("operation not permitted")
        return graph, outputs

    device.capture = fail if rank else capture  # type: ignore[method-assign]
    run.train_step.captured = CapturedSteps(device, value)
    return plain, run


def fail_on_one_rank(rank: int) -> None:
    plain, run = failing_on_one_rank(rank, "on")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        ours = losses_and_fewest_calls(run)
    reason = "not capturing steps (rank 1: operation not permitted); training without CUDA graphs"
    line = f"cuda_graphs=on: {reason}"
    assert printed.getvalue().splitlines() == [line] * (rank == 0)
    assert run.train_step.captured.replays == 0
    assert ours[0] == losses_and_fewest_calls(plain)[0]
    assert_same_state(run, plain)


def test_a_capture_that_fails_on_one_rank_fails_on_all() -> None:
    on_two_ranks(fail_on_one_rank)


def fail_if_required(rank: int) -> None:
    _, run = failing_on_one_rank(rank, "require")
    reason = r"cannot capture steps \(rank 1: operation not permitted\); set cuda_graphs=on"
    with pytest.raises(UserError, match=f"^cuda_graphs=require: {reason}$"):
        losses_and_fewest_calls(run)


def test_a_required_capture_that_fails_on_one_rank_is_an_error_on_all() -> None:
    on_two_ranks(fail_if_required)


class Unused(nn.Module):
    """A network with a parameter that no output depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.unused = tiny(), nn.Parameter(torch.ones(3))

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.network(images)
        return outputs


def train_with_an_unused(rank: int) -> None:
    states = []
    for captures in (False, True):
        _, run = build_on_ranks(rank, 2, ["optimizer.weight_decay=0"], lambda *_: Unused())
        if captures:
            run.train_step.captured = CapturedSteps(StandIn(), "on")
        losses_and_fewest_calls(run)
        assert_equal_on_ranks(run)
        states.append(run)
    assert_same_state(*states)
    assert torch.equal(states[0].train_step.model.unused.detach(), torch.ones(3))


def test_a_parameter_without_a_gradient_has_the_mean_zero() -> None:
    on_two_ranks(train_with_an_unused)
