"""An evaluation class by class: a table, its files, and the confusion matrix as an image."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from launcher import atomic

_MOST_DRAWN, _MOST_NUMBERED = 40, 20


@dataclass(frozen=True)
class ClassResult:
    """One class: its number of `pictures`, the share that is found, and the share of those `found` that are of it.

    `taken_for` is the class that most others of its images were taken for, and `times` how many.
    """

    name: str
    pictures: int
    top1: float | None
    found: int
    precision: float | None
    taken_for: str | None
    times: int


def by_class(classes: Sequence[str], confusion: np.ndarray) -> list[ClassResult]:
    """Each class of int64 [classes, classes] by label and class found, the worst top-1 first, without images last.

    Equal ones in the order of the most images that are wrong, then of the classes.
    """
    right, images, predicted = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    wrong = confusion - np.diag(right)
    order = sorted(
        range(len(classes)), key=lambda n: (images[n] == 0, right[n] / max(1, images[n]), -wrong[n].sum(), n)
    )
    return [
        ClassResult(
            name=classes[n],
            pictures=int(images[n]),
            top1=float(right[n] / images[n]) if images[n] else None,
            found=int(predicted[n]),
            precision=float(right[n] / predicted[n]) if predicted[n] else None,
            taken_for=classes[int(wrong[n].argmax())] if wrong[n].any() else None,
            times=int(wrong[n].max()),
        )
        for n in order
    ]


def write_by_class(classes: Sequence[str], confusion: np.ndarray, path: Path, title: str) -> None:
    """Write a .csv of the classes, a .json that has the matrix too, or the matrix as a .png; atomically."""
    with atomic.writing(path) as temporary:
        rows = [asdict(row) for row in by_class(classes, confusion)]
        if path.suffix == ".csv":
            with temporary.open("w", encoding="utf-8", newline="") as file:
                table = csv.DictWriter(file, rows[0], lineterminator="\n")
                table.writeheader()
                table.writerows(rows)
        elif path.suffix == ".json":
            matrix = {"classes": list(classes), "confusion": confusion.tolist(), "by_class": rows}
            temporary.write_text(json.dumps(matrix) + "\n", encoding="utf-8")
        else:
            _draw(classes, confusion, temporary, title)


def most_confused(confusion: np.ndarray, count: int) -> np.ndarray:
    """The numbers of so many classes that take part in the most mistakes, in their own order."""
    wrong = confusion - np.diag(confusion.diagonal())
    worst = np.argsort(-(wrong.sum(0) + wrong.sum(1)), kind="stable")[:count]
    return np.sort(worst)


def _draw(classes: Sequence[str], confusion: np.ndarray, path: Path, title: str) -> None:
    """Shares of each row's images as shades, with the counts where there is room for them."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    chosen = most_confused(confusion, _MOST_DRAWN)
    counts = confusion[np.ix_(chosen, chosen)]
    shares = counts / np.maximum(1, confusion.sum(1)[chosen])[:, None]
    side = max(4.5, 2.5 + 0.28 * len(chosen))
    figure = Figure(figsize=(side, side), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    names = [classes[number].replace("$", r"\$") for number in chosen]
    axes.set_xticks(range(len(chosen)), names, rotation=90, fontsize=7)
    axes.set_yticks(range(len(chosen)), names, fontsize=7)
    axes.set_xlabel("found")
    axes.set_ylabel("class")
    more = f"\nthe {len(chosen)} most confused of {len(classes):,} classes" * (len(chosen) < len(classes))
    axes.set_title(title + more, loc="left", weight="bold", fontsize=9)
    if len(chosen) <= _MOST_NUMBERED:
        for row, column in zip(*counts.nonzero(), strict=True):
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, f"{counts[row, column]:,}", ha="center", va="center", fontsize=6, color=colour)
    # note: the temporary name's suffix says nothing of the format
    figure.savefig(path, format="png")
