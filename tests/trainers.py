"""Trainers of a tiny network on a few small images, and some of their steps."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from launcher.algorithms.base import Teacher
from launcher.config import recipes
from launcher.config.algorithms import ALGORITHMS
from launcher.config.compose import compose
from launcher.config.groups import options
from launcher.config.schema import RunConfig
from launcher.rank.group import Ranks
from launcher.rank.signs import StopFlag
from launcher.records.run_folder import RunFolder
from launcher.training import checkpoint
from launcher.training.loop import train
from launcher.training.meters import StepOutcome
from launcher.training.metric_logger import MetricLogger
from launcher.training.networks import teacher_of
from launcher.training.nonfinite import NonFiniteGuard
from launcher.training.saving import Saver
from launcher.training.trainer import Trainer, build_trainer
from tests.networks import tiny

SMALL = [
    *("dataset=shapes", "dataset.train_samples=32", "dataset.val_samples=10", "dataset.native_size=16"),
    *("model=resnet18", "launch=cpu", "batch_size=8", "dataloader.workers=0", "optimizer.scale_lr=off"),
    *("optimizer.lr=0.01", "epochs=3"),
]
# The smallest image size at which a CPU computes bf16 correctly.
SIZE_FOR_BF16 = "dataset.native_size=32"
# A vision transformer of the same size.
VIT = ["model=vit", "model.width=32", "model.depth=2", "model.heads=4", "model.mlp_width=48", "model.patch_size=8"]
# Each task besides classification, with algorithms that change its targets.
TASKS = {
    "multilabel": [
        *("dataset=scenes", "task=multilabel", "loss=bce", "loss.class_weights=auto"),
        *("algorithms=[mixup,cutmix,label_smoothing]", "algorithms.mixup.probability=0.5"),
        "algorithms.cutmix.probability=0.5",
    ],
    "regression": ["dataset=scene_colours", "task=regression", "loss=huber", "algorithms=[mixup,ema]"],
}


# Words that make an algorithm act within a few steps.
EARLY = {
    "swa": ["algorithms.swa.start=0ba", "algorithms.swa.update_interval=2ba"],
    "distillation": ["algorithms.distillation.teacher=resnet18"],
    "ema": ["algorithms.ema.update_interval=2ba"],
    "sam": ["algorithms.sam.interval=2"],
    "backbone_freezing": ["algorithms.backbone_freezing.until=2ba"],
    "layer_freezing": ["algorithms.layer_freezing.start=0.0"],
    "selective_backprop": ["algorithms.selective_backprop.start=0.0"],
    "random_erasing": ["algorithms.random_erasing.probability=1.0"],
    "squeeze_excite": ["algorithms.squeeze_excite.min_channels=32"],
    "ghost_batchnorm": ["algorithms.ghost_batchnorm.ghost_batch_size=3"],
    "mixup": ["algorithms.mixup.probability=0.5"],
    "cutmix": ["algorithms.cutmix.probability=0.5"],
}
# Algorithms and recipes of images with labels; tests/tasks/ has the tables of tokens and masks.
ALGORITHMS = [name for name, kind in ALGORITHMS.declarations().items() if kind.acts_on != ("tokens",)]
RECIPES = [
    recipe.name for recipe in recipes.listing() if recipe.options.get("task") not in ("language", "segmentation")
]
OPTIMIZERS = options("optimizer")


def small_config(name: str, *words: str) -> RunConfig:
    """Compose a recipe, or one algorithm that acts early on a few images; three steps per epoch, a record every two."""
    chosen = [f"algorithms=[{name}]"] if name in ALGORITHMS else [f"recipe={name}"]
    on = compose(chosen).config.algorithms
    early = [word for algorithm in ("ema", "sam", name) if algorithm in on for word in EARLY.get(algorithm, [])]
    size = ["batch_size=12", "dataset.train_samples=36", "schedule.warmup=0ba", "epochs=2"]
    rare = ["eval_every=2ep", "checkpoint.every=2ep", "logger.interval=2ba", "logger.tensorboard=false"]
    return compose([*chosen, *early, *SMALL, *size, *rare, *words]).config


def alone(config: RunConfig) -> Trainer:
    """Build the trainer of a run on one rank."""
    return build_trainer(config, Ranks(0, 1, 0, 1, torch.device("cpu")), teacher=teacher(config))


def teacher(config: RunConfig) -> Teacher | None:
    """Return a network that differs from the run's, at another size and normalization, for a run with a teacher."""
    if config.algorithms.teaching is None:
        return None
    with patch("launcher.models.resnet.library_network", tiny):
        known = teacher_of(replace(config, algorithms=compose(["algorithms=[]"]).config.algorithms))
    for parameter in known.network.parameters():
        parameter.add_(0.01)
    return replace(known, size=24, mean=[0.5] * 3, std=[0.25] * 3)


def build(*words: str) -> Trainer:
    config = compose(["schedule.warmup=0ba", *SMALL, *words]).config
    with patch("launcher.models.resnet.library_network", tiny):
        run = alone(config)
    if run.config.schedule.warmup != "0ba":
        raise AssertionError("a warmup would hide the effect of a step")
    return run


def train_all(run: Trainer, folder: RunFolder) -> None:
    """Train a run to its end like a rank, with its records and checkpoints in the folder."""
    with MetricLogger(run, folder, resumed=False) as logger, Saver(folder, run.config.checkpoint, run.ranks) as saver:
        assert train(run, logger, saver, NonFiniteGuard(run, logger), StopFlag())


def make_nan(run: Trainer, *numbers: int) -> None:
    """Make the loss of the steps with these numbers NaN."""
    inner = run.train_step.gradients

    def gradients(batch: Any, **how: bool) -> torch.Tensor:
        loss = run.train_step.objective.loss
        if batch.moment.step in numbers:
            run.train_step.objective.loss = lambda logits, targets: loss(logits, targets) * float("nan")
        try:
            return inner(batch, **how)
        finally:
            run.train_step.objective.loss = loss

    run.train_step.gradients = gradients


def outcomes(run: Trainer, count: int) -> list[StepOutcome]:
    """Train some steps."""
    results = []
    for _ in range(count):
        images, labels, indices = next(iter(run.rest_of_epoch()))
        step, moment = run.train_step, run.moment(run.next_step)
        results.append(step(images, labels, indices, moment))
        dropped = results[-1].values.read()[3]  # note: as the loop, but later steps stay dropped
        if not dropped:
            step.engine.after_step(step.model, moment)
        run.next_step += 1
    return results


def steps(run: Trainer, count: int) -> list[float]:
    """Train some steps and return their losses."""
    return [outcome.report().loss for outcome in outcomes(run, count)]


def tensors(state: Any) -> list[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        return [state]
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else []
    return [tensor for part in parts for tensor in tensors(part)]


def state_of(run: Trainer) -> list[torch.Tensor]:
    """Copy all tensors that steps change."""
    state = run.state_dict()
    return [tensor.clone() for tensor in tensors([state["model"], state["optimizer"]["state"], state["algorithms"]])]


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether two tensors have the same bits; zeros of different sign differ."""
    ours, theirs = (tensor.reshape(-1).contiguous().view(torch.uint8) for tensor in (first, second))
    return torch.equal(ours, theirs)


def assert_same_state(ours: Trainer, theirs: Trainer) -> None:
    """Check that two runs have the same bits."""
    assert ours.train_step.scaler.state_dict() == theirs.train_step.scaler.state_dict()
    for key in ("model", "weights", "optimizer", "algorithms"):
        pairs = zip(tensors(ours.state_dict()[key]), tensors(theirs.state_dict()[key]), strict=True)
        assert all(same_bits(*pair) for pair in pairs), key


def assert_resumes_to_the_same_bits(words: list[str], path: Path) -> None:
    """Check that a run of these words, saved at the path after three steps, takes the same next two."""
    assert_resumes(partial(build, *words), path)


def assert_resumes(new: Callable[[], Trainer], path: Path) -> None:
    """Check the same of runs that a function makes."""
    whole = new()
    steps(whole, 3)
    checkpoint.save(whole.state_dict(), path)
    losses = steps(whole, 2)
    again = new()
    again.load_state_dict(checkpoint.load(path))
    assert steps(again, 2) == losses
    assert_same_state(again, whole)
