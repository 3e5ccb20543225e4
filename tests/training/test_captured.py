"""Which steps are captured, with which inputs and until when, with a stand-in for CUDA graphs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from launcher.errors import UserError
from launcher.rank.group import Ranks
from launcher.training import captured, trainer
from launcher.training.captured import WARMUP_STEPS, CapturedSteps, Capturer
from launcher.training.worker import capture_run
from tests.graphs import StandIn, StandInGraph
from tests.networks import tiny
from tests.own_code import name_code
from tests.trainers import EARLY, SIZE_FOR_BF16, TASKS, VIT, assert_same_state, build, steps, tensors

DROPOUT = ["model=timm", "model.architecture=test_resnet", "model.drop_rate=0.5", "dataset.native_size=64"]


def adding(weight: Tensor) -> Callable[[Tensor, Tensor], Sequence[Tensor]]:
    return lambda images, targets: [weight.add_((images * targets).sum()).clone()]


def batch(size: int, value: float) -> tuple[Tensor, Tensor]:
    return torch.full((1, 1, size, size), value), torch.full((1,), 2.0)


def test_a_kind_of_step_is_captured_after_its_warmup_and_replayed_on_each_batch() -> None:
    weight = torch.zeros(())
    device = StandIn()
    step, captured_steps = adding(weight), CapturedSteps(device, "on")
    outputs = []
    for value in range(8):
        captured_steps.start_step(1)
        outputs += [float(captured_steps("plain", step, *batch(1, value))[0])]
    assert outputs == [2.0 * sum(range(value + 1)) for value in range(8)]
    assert (device.warmup_steps, device.captures) == (WARMUP_STEPS, 1)
    captured_steps.start_step(1)
    captured_steps("sam", step, *batch(1, 1))
    assert (device.warmup_steps, device.captures) == (WARMUP_STEPS + 1, 1)
    assert captured_steps.summary() == "cuda_graphs: captured 1 graph, replayed in 5 of 9 steps"


def test_graphs_of_the_next_image_size_replace_those_of_the_last() -> None:
    weight = torch.zeros(())
    device = StandIn()
    step, captured_steps = adding(weight), CapturedSteps(device, "on")
    for size in (1, 2):
        # note: some algorithms keep half of every second batch
        for count in [2, 1] * (WARMUP_STEPS + 1):
            captured_steps.start_step(size)
            captured_steps("plain", step, torch.ones(count, 1, size, size), torch.ones(count, 1, 1, 1))
        assert device.captures == 2 * size
    assert (device.dropped, device.pools) == ([1, 2], 2)


def test_a_failed_capture_prints_its_reason_once_and_steps_run_without_graphs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    weight = torch.zeros(())
    device = StandIn()

    def fail(_: object) -> None:
        try:
            raise RuntimeError("operation not permitted\nmore of it")
        finally:
            raise RuntimeError("capture ended")

    monkeypatch.setattr(device, "capture", fail)
    captured_steps = CapturedSteps(device, "on")
    for number in range(4 * WARMUP_STEPS):
        captured_steps.start_step(1)
        captured_steps(("plain", "sam")[number % 2], adding(weight), *batch(1, 1))
    assert float(weight) == 2 * 2 * 2 * WARMUP_STEPS
    line = "cuda_graphs=on: not capturing steps (operation not permitted); training without CUDA graphs"
    assert capsys.readouterr().out.splitlines() == [line]
    assert captured_steps.summary() == f"cuda_graphs: captured 0 graphs, replayed in 0 of {4 * WARMUP_STEPS} steps"
    monkeypatch.setattr(captured, "WARMUP_STEPS", 0)
    required = CapturedSteps(device, "require")
    with pytest.raises(UserError, match=r"^cuda_graphs=require: cannot capture steps \(operation not permitted\)"):
        required("plain", adding(weight), *batch(1, 1))


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_steps_after_a_failed_capture_compute_the_same_bits(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["recipe=baseline", SIZE_FOR_BF16, "schedule.warmup=0ba", f"precision={precision}"]
    plain, run = build(*words), build(*words)
    device, captures = StandIn(), []
    capture = device.capture

    def fail(function: Callable[[], Sequence[Tensor]]) -> tuple[StandInGraph, Sequence[Tensor]]:
        captures.append(function)
        if len(captures) == 1:
            return capture(function)  # note: of the batch preparation
        with monkeypatch.context() as patch:
            patch.setattr(run.train_step.optimizer, "step", lambda *_: torch.ones(1 // 0))
            state = [(tensor, tensor.clone()) for tensor in tensors(run.state_dict())]
            with pytest.raises(ZeroDivisionError):
                function()
            for tensor, value in state:
                tensor.copy_(value)
        raise RuntimeError("broken")

    monkeypatch.setattr(device, "capture", fail)
    run.train_step.captured = CapturedSteps(device, "on")
    assert steps(run, WARMUP_STEPS + 2) == steps(plain, WARMUP_STEPS + 2)
    assert len(captures) == 2
    assert_same_state(run, plain)


def test_another_thread_may_pin_memory_during_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    modes, streams = [], ["main"]

    @contextmanager
    def graph(*_: object, capture_error_mode: str = "global") -> Iterator[None]:
        modes.append(capture_error_mode)
        streams.append("side")
        yield

    stand_ins = {
        **{"Stream": lambda _: None, "CUDAGraph": lambda: "graph", "graph": graph, "graph_pool_handle": object},
        **{"current_stream": lambda: streams[-1], "set_stream": streams.append},
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    capturer = Capturer(torch.device("cuda"))
    assert capturer.capture(list) == ("graph", [])
    with pytest.raises(ZeroDivisionError):
        capturer.capture(lambda: [torch.ones(1 // 0)])
    assert modes == ["thread_local"] * 2
    assert streams == ["main", *["side", "main"] * 2]


@pytest.mark.parametrize(
    "words",
    [
        ["recipe=hot", "algorithms.stochastic_depth=on", "device_batch_size=4", *EARLY["sam"]],
        ["recipe=hot", "device_batch_size=4", *EARLY["sam"], "precision=fp16"],
        [*VIT, "algorithms=[ema,sam,mixup]", *EARLY["sam"], *EARLY["ema"]],
        [*VIT, "algorithms=[sam]", *EARLY["sam"], SIZE_FOR_BF16, "precision=bf16"],
        *([*words, "algorithms.sam=on", *EARLY["sam"]] for words in TASKS.values()),
        # note: dropout draws by the seed of each step, which a replay does not set by itself
        [*DROPOUT, "algorithms=[sam]", *EARLY["sam"]],
    ],
)
def test_captured_steps_compute_the_same_bits(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    monkeypatch.setattr(captured, "WARMUP_STEPS", 1)
    plain, run = (build("precision=fp32", *words, "schedule.warmup=0ba") for _ in range(2))
    device = StandIn()
    run.train_step.captured = CapturedSteps(device, "on")
    assert steps(run, run.plan.total_steps) == steps(plain, plain.plan.total_steps)
    assert_same_state(run, plain)
    sizes = {run.plan.view(step) for step in range(run.plan.total_steps)}
    # note: of batch preparation, of which MixUp and CutMix have one each, and of steps with and without SAM
    assert 2 * len(sizes) < device.captures <= 4 * len(sizes)
    assert len(tensors(run.weights())) > 30


@pytest.mark.parametrize(
    ("words", "own_code", "captures"),
    [
        (["algorithms=[random_erasing,label_smoothing]", "algorithms.random_erasing.probability=1"], False, 2),
        (["algorithms=[random_erasing]", "algorithms.random_erasing.fill=noise"], False, 2),
        (["algorithms=[mixup]"], True, 1),
    ],
)
def test_a_graph_prepares_batches_if_their_changes_read_no_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], own_code: bool, captures: int
) -> None:
    if own_code:
        name_code(tmp_path, monkeypatch, "")
        words = [*words, "code=nets.py"]
    monkeypatch.setattr(captured, "WARMUP_STEPS", 1)
    plain, run = (build("precision=fp32", *words) for _ in range(2))
    device = StandIn()
    run.train_step.captured = CapturedSteps(device, "on")
    assert steps(run, run.plan.total_steps) == steps(plain, plain.plan.total_steps)
    assert_same_state(run, plain)
    assert device.captures == captures


@pytest.mark.parametrize("optimizer", ["decoupled_sgd", "adamw", "lamb", "muon"])
def test_everything_that_a_step_reads_stays_at_its_address(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "build_model", tiny)
    words = ["algorithms=[stochastic_depth,ema]", *EARLY["ema"], "schedule.warmup=0ba", "precision=fp32"]
    run = build(*words, f"optimizer={optimizer}")
    step = run.train_step
    drops = [hook for layer in step.model.modules() for hook in layer._forward_hooks.values()]

    def inputs() -> list[Tensor]:
        rates = [v for group in step.optimizer.param_groups for v in group.values() if isinstance(v, Tensor)]
        state = [*tensors(step.model.state_dict()), *tensors(dict(step.optimizer.state))]
        return [*state, *(drop.mask for drop in drops), *rates]

    steps(run, 1)
    before = inputs()
    steps(run, 1)
    assert len(drops) == 2
    assert [tensor.data_ptr() for tensor in inputs()] == [tensor.data_ptr() for tensor in before]


@pytest.mark.parametrize(
    ("device", "ranks", "words", "reason"),
    [
        ("cpu", 1, [], "they need a GPU"),
        ("cuda", 1, ["algorithms=[layer_freezing]"], "layer_freezing changes which parameters learn"),
        *(
            ("cuda", 1, [f"optimizer={name}"], f"optimizer.name={name} does not support capture")
            for name in ("soap", "shampoo", "schedule_free_adamw")
        ),
        ("cuda", 2, ["algorithms=[mixup]", *EARLY["mixup"]], "batches of ranks may have different layouts"),
    ],
)
def test_a_run_whose_steps_cannot_be_captured_prints_the_reason(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    device: str,
    ranks: int,
    words: list[str],
    reason: str,
) -> None:
    monkeypatch.setattr(trainer, "build_model", tiny)
    run = build(*words, "schedule.warmup=0ba", "precision=fp32", "cuda_graphs=on")
    run.ranks = Ranks(0, ranks, 0, ranks, torch.device(device))
    capture_run(run)
    assert run.train_step.captured is None
    assert capsys.readouterr().out == f"cuda_graphs=on: not capturing steps ({reason}); training without CUDA graphs\n"
    run.plan = replace(run.plan, config=replace(run.config, cuda_graphs="require"))
    with pytest.raises(UserError, match=re.escape(f"cuda_graphs=require: cannot capture steps ({reason})")):
        capture_run(run)
