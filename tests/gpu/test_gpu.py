"""The step on a GPU, cheapest tests first: no synchronization, bit-for-bit resume, memory, captured, compiled."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from launcher.config.compose import compose
from launcher.errors import UserError
from launcher.rank.group import Ranks
from launcher.training import checkpoint
from launcher.training.captured import WARMUP_STEPS
from launcher.training.compiled import compile_run, graphs
from launcher.training.trainer import Trainer, build_trainer
from launcher.training.worker import capture_run, explain_out_of_memory
from tests.trainers import RECIPES, steps

pytestmark = pytest.mark.gpu

WORDS = [
    *("dataset=shapes", "dataset.train_samples=256", "dataset.val_samples=10"),
    *("dataloader=synthetic", "model=resnet18", "optimizer.scale_lr=off", "optimizer.lr=0.01", "epochs=3"),
    "schedule.warmup=1ba",
]
# Values with which an algorithm acts within a few steps.
EARLY = {"ema": "algorithms.ema.update_interval=2ba", "sam": "algorithms.sam.interval=2"}
DRY = os.environ.get("GPU_TESTS") == "dry"
NAMES = ["mild"] if DRY else RECIPES


def build(device: torch.device, *words: str) -> Trainer:
    """Build a run on this device, small on the CPU."""
    size = (
        ["batch_size=64", "dataset.native_size=64"]
        if device.type == "cuda"
        else ["batch_size=2", "dataset.native_size=32"]
    )
    active = compose([*words, *WORDS, *size]).config.algorithms
    early = [word for name, word in EARLY.items() if name in active]
    return build_trainer(compose([*words, *WORDS, *size, *early]).config, Ranks(0, 1, 0, 1, device))


@pytest.mark.parametrize("recipe", ["hot"] if DRY else NAMES)
def test_no_step_synchronizes_with_the_device(recipe: str, device: torch.device) -> None:
    run = build(device, f"recipe={recipe}")
    images, labels, indices = next(iter(run.rest_of_epoch()))

    def train(first: int) -> None:
        for number in range(first, first + 3):
            run.train_step(images, labels, indices, run.moment(number))

    train(0)
    if device.type != "cuda":
        pytest.skip("only a GPU synchronizes; tests/training/test_no_synchronization.py covers the CPU")
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(RuntimeError, match="synchronizing"):
            labels.max().item()
        train(3)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_resumed_run_ends_in_the_same_bits(precision: str, device: torch.device, tmp_path: Path) -> None:
    # note: bf16 is slow on a CPU, and wrong at the smallest image sizes of medium
    recipe = "medium" if device.type == "cuda" else "baseline"
    words = [f"recipe={recipe}", f"precision={precision}", "deterministic=true"]
    try:
        uninterrupted, interrupted, resumed = (build(device, *words) for _ in range(3))
        expected = steps(uninterrupted, 4)
        before = steps(interrupted, 2)
        checkpoint.save(interrupted.state_dict(), tmp_path / "state.pt")
        resumed.load_state_dict(checkpoint.load(tmp_path / "state.pt"))
        assert before + steps(resumed, 2) == expected
        ends = (run.train_step.model.state_dict().values() for run in (resumed, uninterrupted))
        assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))
    finally:
        torch.use_deterministic_algorithms(False)


def test_memory_does_not_grow_over_steps(device: torch.device) -> None:
    run = build(device, "recipe=hot", "algorithms.progressive_resizing=off")
    steps(run, 4)
    if device.type != "cuda":
        pytest.skip("torch does not count the memory of a CPU")
    peaks = []
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats(device)
        steps(run, 4)
        peaks.append(torch.cuda.max_memory_allocated(device))
    assert peaks[1] <= peaks[0]


def test_an_out_of_memory_error_recommends_a_device_batch_size(device: torch.device) -> None:
    if device.type != "cuda":
        pytest.skip("tests/training/test_step_memory.py has a stand-in")
    run = build(device, "recipe=baseline")
    steps(run, 1)
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    filler = torch.empty(free - 2**25, dtype=torch.uint8, device=device)
    with pytest.raises(UserError, match="device_batch_size="), explain_out_of_memory(run.plan):
        steps(run, 1)
    del filler


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compute in fp32 by deterministic convolutions without TF32, whose rounding would hide differences."""
    # note: building a run allows TF32
    monkeypatch.setattr("launcher.training.trainer.set_backend", lambda _: None)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(("recipe", "precision"), [*((name, "fp32") for name in NAMES), ("mild", "bf16")])
def test_captured_steps_have_the_losses_of_eager_ones(recipe: str, precision: str, device: torch.device) -> None:
    words = [f"recipe={recipe}", f"precision={precision}", "algorithms.progressive_resizing=off", "algorithms.sam=off"]
    # note: enough for one kind of batches, of two that MixUp and CutMix draw
    run, count = build(device, *words, "cuda_graphs=on"), 2 * WARMUP_STEPS + 2
    capture_run(run)
    if device.type != "cuda":
        pytest.skip("only a GPU captures; tests/training/test_captured.py has a stand-in")
    captured = run.train_step.captured
    if captured is None:
        pytest.skip("this recipe cannot be captured; its run prints the reason")
    tolerance = 1e-5 if precision == "fp32" else 1e-2
    assert steps(run, count) == pytest.approx(steps(build(device, *words), count), rel=tolerance)
    assert captured.captures >= 1 + run.train_step.engine.can_repeat_changes
    assert captured.replays > 0


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    # note: recipes share graphs through the cache
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "compiled"))
    if DRY:
        from tests.networks import tiny

        # note: everything but the C++ compiler, which takes minutes
        monkeypatch.setattr("launcher.training.compiled.BACKEND", "aot_eager")
        monkeypatch.setattr("launcher.models.resnet.library_network", tiny)
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("compiling", "exact")
@pytest.mark.parametrize("recipe", NAMES)
def test_compiled_steps_have_the_losses_of_eager_ones(recipe: str, device: torch.device) -> None:
    words, before, count = [f"recipe={recipe}", "precision=fp32"], graphs(), WARMUP_STEPS + 2
    run = build(device, *words, "compile=require")
    compile_run(run)
    compiled = graphs()
    assert compiled > before
    # note: fused kernels round differently, by 3e-4 of small's fifth loss on an H200
    assert steps(run, count) == pytest.approx(steps(build(device, *words), count), rel=1e-3)
    assert graphs() == compiled
