"""Every algorithm and every recipe trains by the real step, and resumes from a file to the same bits."""

import math
from pathlib import Path

import pytest
import torch

from launcher.config.groups import options
from launcher.training import checkpoint
from launcher.training.precision import LossScaler, Precision
from tests.covering import sweep
from tests.trainers import ALGORITHMS, EARLY, SIZE_FOR_BF16, TASKS, assert_resumes_to_the_same_bits, build, steps


@pytest.mark.parametrize("name", ALGORITHMS)
def test_each_algorithm_resumes_to_the_same_bits(name: str, tmp_path: Path) -> None:
    words = [f"algorithms=[{name}]", *EARLY.get(name, [])]
    assert_resumes_to_the_same_bits(words, tmp_path / "step-00000003.pt")


@pytest.mark.parametrize("name", TASKS)
def test_each_task_resumes_to_the_same_bits(name: str, tmp_path: Path) -> None:
    assert_resumes_to_the_same_bits(TASKS[name], tmp_path / "step-00000003.pt")


@pytest.mark.parametrize("precision", sweep(["fp32", "fp16"], ["fp32"]))
@pytest.mark.parametrize("name", options("optimizer"))
def test_each_optimizer_resumes_to_the_same_bits(name: str, precision: str, tmp_path: Path) -> None:
    words = [f"optimizer={name}", f"precision={precision}", "algorithms=[sam,gradient_clipping,layer_freezing]"]
    words += [*EARLY["sam"], *EARLY["layer_freezing"], *["optimizer.interval=2"] * (name in ("soap", "shampoo"))]
    assert_resumes_to_the_same_bits(words, tmp_path / "step-00000003.pt")


def test_a_lowered_loss_scale_resumes_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # note: the gradient of the logits overflows on every processor; how many halvings follow depends on its kernels
    monkeypatch.setattr(Precision, "scaler", lambda self: LossScaler("cpu", init_scale=2.0**20))
    path = tmp_path / "step-00000003.pt"
    assert_resumes_to_the_same_bits(["algorithms=[]", "precision=fp16"], path)
    assert checkpoint.load(path)["scaler"]["scale"] in [2.0**17, 2.0**18, 2.0**19]


# note: of its algorithms, mild and medium have some
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_hot_resumes_to_the_same_bits(precision: str, tmp_path: Path) -> None:
    words = ["recipe=hot", f"precision={precision}", "algorithms.progressive_resizing.initial_scale=0.9"]
    words += [*[SIZE_FOR_BF16] * (precision == "bf16"), *EARLY["ema"], *EARLY["sam"]]
    assert_resumes_to_the_same_bits(words, tmp_path / "step-00000003.pt")


@pytest.mark.parametrize("name", ["mild", "medium", "hot"])
def test_a_recipe_as_published_trains_two_steps(name: str) -> None:
    run = build(f"recipe={name}", "fidelity=published")
    start = [p.detach().clone() for p in run.train_step.model.parameters()]
    assert all(map(math.isfinite, steps(run, 2)))
    assert any(not torch.equal(a, b) for a, b in zip(start, run.train_step.model.parameters(), strict=True))


def test_an_algorithm_that_is_off_does_not_change_the_draws_of_others() -> None:
    words = ["algorithms=[mixup]"]
    first = steps(build(*words), 2)
    assert first == steps(build(*words, "algorithms.blurpool=on", "algorithms.blurpool=off"), 2)


def test_bf16_computes_the_same_as_fp32_up_to_its_precision() -> None:
    words = ["algorithms=[label_smoothing]", SIZE_FOR_BF16]
    exact, rounded = (steps(build(*words, f"precision={precision}"), 2) for precision in ("fp32", "bf16"))
    assert exact == pytest.approx(rounded, rel=0.1)
    assert exact != rounded


def test_micro_batches_train_on_the_whole_batch() -> None:
    words = ["algorithms=[label_smoothing]", "precision=fp32"]
    whole, accumulated = build(*words), build(*words, "device_batch_size=2")
    for run in (whole, accumulated):
        # note: batch norm would normalize each micro-batch separately
        run.train_step.model.eval()
    assert accumulated.plan.accumulation == 4
    assert steps(whole, 3) == pytest.approx(steps(accumulated, 3), rel=1e-4)
