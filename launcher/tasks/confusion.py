"""Right and wrong predictions of classes: a table by class, the confusion matrix, and a gallery of images."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from launcher import atomic, page
from launcher.console import csv_cell
from launcher.data.loaders import EvaluationLoader
from launcher.data.sampling import Request
from launcher.errors import one_line
from launcher.tasks import Task

_MOST_DRAWN, _MOST_NUMBERED, _MOST_SHOWN = 40, 20, 24


class Confusion:
    """Counts the images of a task's classes by true and predicted class."""

    def __init__(self, task: Task, classes: Sequence[str], *, with_images: bool):
        self.classes = [*classes]
        # note: rows are true classes
        self._counts = torch.zeros(len(classes), len(classes), dtype=torch.int64)
        self._gallery = Gallery(task, classes) if with_images else None

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        self._counts = self._counts.to(outputs.device)
        count_confused(self._counts, outputs, targets)
        if self._gallery:
            self._gallery.add(outputs, targets)

    @property
    def counts(self) -> np.ndarray:
        """The confusion matrix, int64 [classes, classes]."""
        return self._counts.cpu().numpy()

    def table(self) -> tuple[Sequence[str], list[list[str]]]:
        rows = []
        for row in by_class(self.classes, self.counts):
            shares = ("-" if share is None else f"{share:.1%}" for share in (row.top1, row.precision))
            confused = f"{row.confused_with} ({row.confused:,})" if row.confused_with is not None else "-"
            rows.append([row.name, f"{row.images:,}", *shares, confused])
        return ("class", "images", "recall (top-1)", "precision", "most confused with"), rows

    def values(self) -> dict[str, object]:
        rows = [asdict(row) for row in by_class(self.classes, self.counts)]
        return {"by_class": rows, "classes": self.classes, "confusion": self.counts.tolist()}

    def write(self, folder: Path, title: str) -> list[Path]:
        return write_by_class(self.classes, self.counts, folder, title)

    def sections(self, loader: EvaluationLoader) -> str:
        return self._gallery.sections(loader) if self._gallery else ""


def count_confused(confusion: Tensor, outputs: Tensor, targets: Tensor) -> None:
    """Add a batch to the counts int64 [classes, classes] of images by true and predicted class."""
    # note: bincount would synchronize host and device
    confusion.view(-1).index_add_(0, targets * len(confusion) + outputs.argmax(1), torch.ones_like(targets))


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
    write_rows(table, [asdict(row) for row in by_class(classes, confusion)])
    with atomic.writing(drawing) as temporary:
        _draw(classes, confusion, temporary, title)
    return [table, drawing]


def write_rows(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write a table in CSV, atomically."""
    with atomic.writing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: csv_cell(v) if isinstance(v, str) else v for key, v in row.items()} for row in rows)


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


@dataclass(frozen=True)
class Judged:
    """An evaluated image: its sample number, its class, and the predicted class with its probability."""

    index: int
    label: str
    prediction: str
    probability: float


@dataclass
class Gallery:
    """The predictions of all images, in the order of an evaluation by one rank."""

    task: Task
    classes: Sequence[str]
    judged: list[Judged] = field(default_factory=list)

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch: outputs [B, classes], and its labels int64 [B]."""
        first = len(self.judged)
        likeliest = self.task.predictions(outputs, self.classes, 1)
        for number, (label, ((prediction, probability),)) in enumerate(zip(targets.tolist(), likeliest, strict=True)):
            self.judged.append(Judged(first + number, self.classes[label], prediction, probability))

    def sections(self, loader: EvaluationLoader) -> str:
        """Return the markup of both lists, with images from the loader."""
        wrong = [one for one in self.judged if one.prediction != one.label]
        right = [one for one in self.judged if one.prediction == one.label]
        total = f"of {len(self.judged):,} images"
        errors = sorted(wrong, key=lambda one: -one.probability)[:_MOST_SHOWN]
        hits = sorted(right, key=lambda one: one.probability)[:_MOST_SHOWN]
        return page.section(
            "Most confident errors",
            f"{len(wrong):,} {total} are predicted as another class; shown are those with the highest probability",
            _figures(errors, loader),
        ) + page.section(
            "Least confident hits",
            f"{len(right):,} {total} are predicted as their class; shown are those with the lowest probability",
            _figures(hits, loader),
        )


def _figures(chosen: Sequence[Judged], loader: EvaluationLoader) -> str:
    """Return the images as the network gets them, with file, label, prediction and probability."""
    if not chosen:
        return "<p>none</p>"
    request = Request(0, 0, np.array([one.index for one in chosen]), loader.size)
    images, _, _ = next(iter(loader.reader.batches([request])))
    shown = []
    for one, pixels in zip(chosen, images.permute(0, 2, 3, 1).numpy(), strict=True):
        lines = (f"<b>{page.text(one.label)}</b>", f"predicted {page.text(one.prediction)}, {one.probability:.1%}")
        caption = "<br>".join([*lines, f'<span class="hint">{page.text(loader.reader.name(one.index))}</span>'])
        shown.append((pixels, f"{one.label}, predicted {one.prediction}", caption))
    return page.figures(shown)
