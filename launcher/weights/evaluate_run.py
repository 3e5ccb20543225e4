"""Evaluate a checkpoint of a run in one process, and write its result by class as a table and an image."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from launcher import atomic
from launcher.config.schema import RunConfig
from launcher.console import csv_cell
from launcher.data.inspection import match_folder
from launcher.data.loaders import EvaluationLoader, build_evaluation, build_loaders
from launcher.data.sources.source import quiet
from launcher.data.unreadable import read_skipped
from launcher.errors import Problem, UserError, one_line
from launcher.plan.plan import Plan, plan_for
from launcher.rank.group import single_rank
from launcher.records.run_folder import RunFolder
from launcher.training.evaluation import Evaluation, evaluate
from launcher.weights.classifier import classifier_of, load_checkpoint
from launcher.weights.gallery import Gallery

_MOST_DRAWN, _MOST_NUMBERED = 40, 20


@dataclass(frozen=True)
class CheckpointResult:
    """A checkpoint's step and result; `confusion`, int64 [classes, classes], counts images.

    Its rows are true classes, its columns predicted ones. `notes` list classes that were not evaluated. `gallery` is
    the markup of its errors and hits, if requested.
    """

    step: int
    result: Evaluation
    classes: list[str]
    confusion: np.ndarray
    notes: list[str]
    gallery: str


def evaluate_run(
    folder: RunFolder, config: RunConfig, device: str, *, best: bool = False, other: Path | None = None,
    with_gallery: bool = False,
) -> CheckpointResult:  # fmt: skip
    """Evaluate the newest checkpoint, or the best, on the validation set or an `other` folder, on `cpu` or `cuda`.

    config: the run's, with the changes that an evaluation allows.

    Raises:
        UserError: the run has no valid checkpoint, its data are missing, or the folder has none of its classes.
        MachineError: the GPU cannot be used.
    """
    if config.dataset.classes == 1:
        raise UserError(f"{folder.path} was trained on one class, so every prediction is correct; evaluate another run")
    state, plan = load_checkpoint(folder, best=best), plan_for(config, 1)
    classifier = classifier_of(plan, state, device)
    classes: list[str] = classifier.card["classes"]
    confusion = torch.zeros(len(classes), len(classes), dtype=torch.int64, device=classifier.device)
    gallery = Gallery(classifier.task, classes)

    def observe(outputs: Tensor, targets: Tensor) -> None:
        count_confused(confusion, outputs, targets)
        if with_gallery:
            gallery.add(outputs, targets)

    with _images(plan, state, folder, other, classifier.device) as (loader, notes):
        result = evaluate(
            classifier.network,
            loader,
            classifier.normalize,
            classifier.task,
            classifier.device,
            classifier.precision.autocast,
            flip_average=config.image.eval_flip_average,
            should_stop=lambda: False,
            observe=observe,
        )
        sections = gallery.sections(loader) if with_gallery else ""
    assert result is not None
    return CheckpointResult(state["step"], result, classes, confusion.cpu().numpy(), notes, sections)


def count_confused(confusion: Tensor, outputs: Tensor, targets: Tensor) -> None:
    """Add a batch to the counts int64 [classes, classes] of images by true and predicted class."""
    # note: bincount would synchronize host and device
    confusion.view(-1).index_add_(0, targets * len(confusion) + outputs.argmax(1), torch.ones_like(targets))


@contextmanager
def _images(
    plan: Plan, state: dict[str, Any], folder: RunFolder, other: Path | None, device: torch.device
) -> Iterator[tuple[EvaluationLoader, list[str]]]:
    """Yield the run's validation images or those of another folder, and notes on their classes."""
    if other is None:
        skipped = read_skipped(folder.skipped, plan.config.dataset)
        with closing(build_loaders(plan, single_rank(device), skipped=skipped)) as loaders:
            yield loaders.evaluate, []
        return
    if not (classes := state.get("classes")):
        message = "the checkpoint has no class names to match the folders by; remove dataset.path"
        raise UserError(Problem(message, "dataset.path", other))
    images, notes = match_folder(other, plan.config.dataset, classes, quiet)
    with closing(build_evaluation(plan, images, single_rank(device))) as loader:
        yield loader, notes


@dataclass(frozen=True)
class ClassResult:
    """One class: its number of `images`, its recall `top1`, and the `precision` of the images `predicted` as it.

    `confused_with` is the class that most of its other images are predicted as, and `confused` their number.
    """

    name: str
    images: int
    top1: float | None
    predicted: int
    precision: float | None
    confused_with: str | None
    confused: int


def by_class(classes: Sequence[str], confusion: np.ndarray) -> list[ClassResult]:
    """Return each class of a confusion matrix int64 [classes, classes], lowest top-1 first, without images last.

    Ties are ordered by the number of wrong predictions, then by class.
    """
    right, images, predicted = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    wrong = confusion - np.diag(right)
    order = sorted(
        range(len(classes)), key=lambda n: (images[n] == 0, right[n] / max(1, images[n]), -wrong[n].sum(), n)
    )
    return [
        ClassResult(
            name=classes[n],
            images=int(images[n]),
            top1=float(right[n] / images[n]) if images[n] else None,
            predicted=int(predicted[n]),
            precision=float(right[n] / predicted[n]) if predicted[n] else None,
            confused_with=classes[int(wrong[n].argmax())] if wrong[n].any() else None,
            confused=int(wrong[n].max()),
        )
        for n in order
    ]


def write_by_class(classes: Sequence[str], confusion: np.ndarray, folder: Path, title: str) -> list[Path]:
    """Write by_class.csv, with a row for each class, and confusion.png, the matrix, into a folder; atomically."""
    table, drawing = folder / "by_class.csv", folder / "confusion.png"
    rows = [asdict(row) for row in by_class(classes, confusion)]
    with atomic.writing(table) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: csv_cell(v) if isinstance(v, str) else v for key, v in row.items()} for row in rows)
    with atomic.writing(drawing) as temporary:
        _draw(classes, confusion, temporary, title)
    return [table, drawing]


def most_confused(confusion: np.ndarray, count: int) -> np.ndarray:
    """Return the numbers of the `count` classes with the most errors as true or predicted class, in class order."""
    wrong = confusion - np.diag(confusion.diagonal())
    worst = np.argsort(-(wrong.sum(0) + wrong.sum(1)), kind="stable")[:count]
    return np.sort(worst)


def _draw(classes: Sequence[str], confusion: np.ndarray, path: Path, title: str) -> None:
    """Draw the fraction of each row's images as shades, with the counts where they fit."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    chosen = most_confused(confusion, _MOST_DRAWN)
    counts = confusion[np.ix_(chosen, chosen)]
    shares = counts / np.maximum(1, confusion.sum(1)[chosen])[:, None]
    size = max(4.5, 2.5 + 0.28 * len(chosen))
    figure = Figure(figsize=(size, size), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    names = [one_line(classes[number]).replace("$", r"\$") for number in chosen]
    axes.set_xticks(range(len(chosen)), names, rotation=90, fontsize=7)
    axes.set_yticks(range(len(chosen)), names, fontsize=7)
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    more = f"\nthe {len(chosen)} most confused of {len(classes):,} classes" * (len(chosen) < len(classes))
    axes.set_title(title + more, loc="left", weight="bold", fontsize=9)
    if len(chosen) <= _MOST_NUMBERED:
        for row, column in zip(*counts.nonzero(), strict=True):
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, f"{counts[row, column]:,}", ha="center", va="center", fontsize=6, color=colour)
    # note: the temporary name has another suffix
    figure.savefig(path, format="png")
