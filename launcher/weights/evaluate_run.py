"""Evaluate the newest or best checkpoint of a run in one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from launcher.config.schema import RunConfig
from launcher.data.inspect import evaluated_as
from launcher.data.loaders import EvaluationLoader, build_evaluation, build_loaders
from launcher.data.sources.source import quiet
from launcher.data.unreadable import read_skipped
from launcher.errors import Problem, UserError
from launcher.plan.plan import Plan, plan_for
from launcher.records.folder import RunFolder
from launcher.tasks import build_task
from launcher.training import checkpoint
from launcher.training.evaluation import Evaluation, evaluate
from launcher.weights.classifier import classifier_of


@dataclass(frozen=True)
class CheckpointResult:
    """A checkpoint's step and result; of each class `confusion` int64 [classes, classes] counts images.

    Its rows are the images' own classes, its columns those found. `notes` list classes that were not evaluated.
    """

    step: int
    result: Evaluation
    classes: list[str]
    confusion: np.ndarray
    notes: list[str]


def evaluate_run(
    folder: RunFolder, config: RunConfig, device: str, *, best: bool = False, other: Path | None = None
) -> CheckpointResult:
    """Evaluate the newest checkpoint, or the best, on the validation set or on an`other` folder, on `cpu` or `cuda`.

    config: the run's, with what may differ here.

    Raises:
        UserError: the run has no valid checkpoint, or its data are gone; or the folder has none of its classes.
        MachineError: the GPU cannot be used.
    """
    if config.dataset.classes == 1:
        raise UserError(f"{folder.path} was trained on one class, of which every image is right; there is no top-1")
    state, plan = saved(folder, best=best), plan_for(config, 1)
    classifier = classifier_of(plan, state, device)
    classes: list[str] = classifier.card["classes"]
    confusion = torch.zeros(len(classes), len(classes), dtype=torch.int64, device=classifier.device)
    with _images(plan, state, folder, other, classifier.device) as (loader, notes):
        result = evaluate(
            classifier.network,
            loader,
            classifier.normalize,
            build_task(config.task, config.loss.name),
            classifier.device,
            classifier.precision.autocast,
            flip_average=config.image.eval_flip_average,
            should_stop=lambda: False,
            observe=partial(count_confused, confusion),
        )
    assert result is not None
    return CheckpointResult(state["step"], result, classes, confusion.cpu().numpy(), notes)


def count_confused(confusion: Tensor, outputs: Tensor, targets: Tensor) -> None:
    """Add a batch to int64 [classes, classes], its images' own classes by those of the largest outputs."""
    # note: without a host-device synchronization, which bincount would be
    confusion.view(-1).index_add_(0, targets * len(confusion) + outputs.argmax(1), torch.ones_like(targets))


@contextmanager
def _images(
    plan: Plan, state: dict[str, Any], folder: RunFolder, other: Path | None, device: torch.device
) -> Iterator[tuple[EvaluationLoader, list[str]]]:
    """The run's validation images or those of another folder, and notes on their classes."""
    if other is not None:
        loader, notes = _other(plan, state, other, device)
        with closing(loader):
            yield loader, notes
        return
    skipped = read_skipped(folder.skipped, plan.config.dataset)
    with closing(build_loaders(plan, device=device, skipped=skipped)) as loaders:
        yield loaders.evaluate, []


def _other(plan: Plan, state: dict[str, Any], path: Path, device: torch.device) -> tuple[EvaluationLoader, list[str]]:
    if not (classes := state.get("classes")):
        message = "the checkpoint has no names of classes, by which those of another folder are found"
        raise UserError(Problem(message, "dataset.path", path))
    images, notes = evaluated_as(path, plan.config.dataset, classes, quiet)
    return build_evaluation(plan, images, device), notes


def saved(folder: RunFolder, *, best: bool) -> dict[str, Any]:
    """The newest valid checkpoint, or that of the best evaluation.

    Raises:
        UserError: there is none, or no run has left it.
    """
    state = checkpoint.load(folder.best) if best else checkpoint.newest_valid(folder.checkpoints)
    if state is None:
        raise UserError(f"{folder.path} has no valid checkpoint yet")
    if lacking := [name for name in ("step", "weights") if name not in state]:
        raise UserError(
            f"{folder.path}: the checkpoint has no {' and no '.join(lacking)}; no run of this program left it"
        )
    return state
