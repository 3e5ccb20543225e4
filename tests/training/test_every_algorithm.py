"""Every method and every recipe through the real step: it trains, and resumes from a file to the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from launcher.config import recipes
from launcher.config.compose import compose
from launcher.config.defaults import options
from launcher.errors import UserError
from launcher.rank.group import Ranks
from launcher.training import checkpoint
from launcher.training.step import StepOutcome
from launcher.training.trainer import Trainer, build_trainer

SMALL = [
    *("dataset=shapes", "dataset.train_samples=32", "dataset.val_samples=10", "dataset.native_size=32"),
    *("model=resnet18", "launch=cpu", "batch_size=8", "dataloader.workers=0", "optimizer.scale_lr=off"),
    *("optimizer.lr=0.01", "epochs=3"),
]
# Words that make a method act within a few steps.
EARLY = {
    "swa": ["algorithms.swa.start=0ba", "algorithms.swa.update_interval=2ba"],
    "ema": ["algorithms.ema.update_interval=2ba"],
    "sam": ["algorithms.sam.interval=2"],
    "layer_freezing": ["algorithms.layer_freezing.start=0.0"],
    "selective_backprop": ["algorithms.selective_backprop.start=0.0"],
    "random_erasing": ["algorithms.random_erasing.probability=1.0"],
    "ghost_batchnorm": ["algorithms.ghost_batchnorm.ghost_batch_size=4"],
    "mixup": ["algorithms.mixup.probability=0.5"],
    "cutmix": ["algorithms.cutmix.probability=0.5"],
}
NAMES = [recipe.name for recipe in (*recipes.listing(), *recipes.ablations())]


def build(*words: str) -> Trainer:
    run = build_trainer(compose([*words, *SMALL]).config, Ranks(0, 1, 0, 1, torch.device("cpu")))
    if run.config.schedule.warmup != "0ba":
        raise AssertionError("the warmup would hide what a step does")
    return run


def outcomes(run: Trainer, count: int) -> list[StepOutcome]:
    """Train some steps."""
    found = []
    for _ in range(count):
        images, labels, indices = next(iter(run.rest_of_epoch()))
        found.append(run.train_step(images, labels, indices, run.moment(run.next_step)))
        run.next_step += 1
    return found


def steps(run: Trainer, count: int) -> list[float]:
    """Train some steps; returns their losses."""
    return [outcome.loss.item() for outcome in outcomes(run, count)]


def tensors(state: Any) -> list[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        return [state]
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else []
    return [tensor for part in parts for tensor in tensors(part)]


def assert_resumes_to_the_same_bits(words: list[str], path: Path) -> None:
    whole = build(*words)
    losses = steps(whole, 5)
    parts = build(*words)
    before = steps(parts, 3)
    checkpoint.save(parts.state_dict(), path)
    again = build(*words)
    again.load_state_dict(checkpoint.load(path))
    assert before + steps(again, 2) == losses
    for key in ("model", "weights", "optimizer", "algorithms"):
        ours, theirs = tensors(again.state_dict()[key]), tensors(whole.state_dict()[key])
        assert len(ours) == len(theirs)
        assert all(map(torch.equal, ours, theirs)), key


@pytest.fixture(autouse=True)
def small_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.mark.parametrize("name", options("algorithms"))
def test_each_algorithm_resumes_to_the_same_bits(name: str, tmp_path: Path) -> None:
    words = [f"algorithms=[{name}]", "schedule.warmup=0ba", *EARLY.get(name, [])]
    assert_resumes_to_the_same_bits(words, tmp_path / "step-00000003.pt")


@pytest.mark.parametrize(
    ("recipe", "precision"),
    [("mild", "fp32"), ("medium", "fp32"), ("hot", "fp32"), ("hot", "bf16"), ("hot", "fp16")],
)
def test_each_recipe_resumes_to_the_same_bits(recipe: str, precision: str, tmp_path: Path) -> None:
    on = compose([f"recipe={recipe}"]).config.algorithms.active()
    words = [
        f"recipe={recipe}",
        f"precision={precision}",
        "schedule.warmup=0ba",
        "algorithms.progressive_resizing.initial_scale=0.9",
        *(w for name in ("ema", "sam") if name in on for w in EARLY[name]),
    ]
    assert_resumes_to_the_same_bits(words, tmp_path / "step-00000003.pt")


@pytest.mark.parametrize(
    ("name", "fidelity"),
    [*((name, "ours") for name in NAMES), *((name, "published") for name in ("mild", "medium", "hot"))],
)
def test_each_recipe_and_ablation_trains_two_steps(name: str, fidelity: str) -> None:
    run = build(f"recipe={name}", "schedule.warmup=0ba", f"fidelity={fidelity}")
    start = [p.detach().clone() for p in run.train_step.model.parameters()]
    assert all(torch.isfinite(torch.tensor(loss)) for loss in steps(run, 2))
    assert any(not torch.equal(a, b) for a, b in zip(start, run.train_step.model.parameters(), strict=True))


def test_an_algorithm_that_is_off_changes_nothing_of_the_others_draws() -> None:
    words = ["algorithms=[mixup]", "schedule.warmup=0ba"]
    first = steps(build(*words), 2)
    assert first == steps(build(*words, "algorithms.blurpool=on", "algorithms.blurpool=off"), 2)


def test_images_too_small_for_bf16_on_a_cpu_are_refused() -> None:
    with pytest.raises(UserError, match=r"precision=bf16: has wrong gradients on a CPU for images of 16 px"):
        build("algorithms=[progressive_resizing]", "schedule.warmup=0ba", "precision=bf16")


def test_bf16_computes_what_fp32_computes_to_its_precision() -> None:
    words = ["algorithms=[label_smoothing]", "schedule.warmup=0ba"]
    exact, rounded = (steps(build(*words, f"precision={precision}"), 2) for precision in ("fp32", "bf16"))
    assert exact == pytest.approx(rounded, rel=0.1)
    assert exact != rounded


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_each_precision_trains_and_resumes_to_the_same_bits(precision: str, tmp_path: Path) -> None:
    words = ["recipe=medium", "schedule.warmup=0ba", f"precision={precision}", *EARLY["sam"]]
    assert_resumes_to_the_same_bits(words, tmp_path / "step-00000003.pt")


def test_accumulation_trains_on_the_whole_share() -> None:
    words = ["algorithms=[label_smoothing]", "schedule.warmup=0ba", "precision=fp32"]
    whole, parts = build(*words), build(*words, "device_batch_size=2")
    for run in (whole, parts):
        # note: batch norm sees each part alone, so that it must not depend on the batch here
        run.train_step.model.eval()
    assert parts.plan.accumulation == 4
    assert steps(whole, 3) == pytest.approx(steps(parts, 3), rel=1e-4)
