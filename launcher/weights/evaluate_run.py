"""Evaluate a checkpoint of a run in one process, with details by class or number."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from launcher.config.schema import RunConfig
from launcher.data.inspection import match_images
from launcher.data.loaders import EvaluationLoader, build_evaluation, build_loaders
from launcher.data.unreadable import read_skipped
from launcher.errors import Problem, UserError
from launcher.plan.plan import Plan, plan_for
from launcher.rank.group import single_rank
from launcher.records.run_folder import RunFolder
from launcher.tasks import Details
from launcher.training.evaluation import Evaluation, evaluate
from launcher.weights.classifier import classifier_of, load_checkpoint


@dataclass(frozen=True)
class CheckpointResult:
    """A checkpoint's step, result and details by class or number; `notes` list classes that were not evaluated.

    `gallery` is the markup of some of the images, if requested.
    """

    step: int
    result: Evaluation
    details: Details
    notes: list[str]
    gallery: str


def evaluate_run(
    folder: RunFolder, config: RunConfig, device: str, *, best: bool = False, other: str | None = None,
    with_gallery: bool = False,
) -> CheckpointResult:  # fmt: skip
    """Evaluate the newest checkpoint, or the best, on the validation set or `other` images, on `cpu` or `cuda`.

    config: the run's, with the changes that an evaluation allows.

    Raises UserError if the run has no valid checkpoint, its data are missing, or the other images none of its classes.
    Raises MachineError if the GPU cannot be used.
    """
    state, plan = load_checkpoint(folder, best=best), plan_for(config, 1)
    classifier = classifier_of(plan, state, device)
    details = classifier.task.details(classifier.card["classes"], with_images=with_gallery)
    with _images(plan, state, folder, other, classifier.device) as (loader, notes):
        task, observe = classifier.task, details.add
        result = evaluate(classifier.network, classifier.outputs, loader, task, classifier.device, observe=observe)
        sections = details.sections(loader) if with_gallery else ""
    assert result is not None
    return CheckpointResult(state["step"], result, details, notes, sections)


@contextmanager
def _images(
    plan: Plan, state: dict[str, Any], folder: RunFolder, other: str | None, device: torch.device
) -> Iterator[tuple[EvaluationLoader, list[str]]]:
    """Yield the run's validation images or others, and notes on their classes."""
    if other is None:
        skipped = read_skipped(folder.skipped, plan.config.dataset)
        with closing(build_loaders(plan, single_rank(device), skipped=skipped)) as loaders:
            yield loaders.evaluate, []
        return
    if not (classes := state.get("classes")):
        message = "the checkpoint has no class names to match the labels by; remove dataset.path"
        raise UserError(Problem(message, "dataset.path", other))
    images, notes = match_images(other, plan.config, classes)
    with closing(build_evaluation(plan, images, single_rank(device))) as loader:
        yield loader, notes
