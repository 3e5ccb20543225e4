"""Every image of an evaluation: file, label, predictions and loss, as a CSV file."""

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from launcher.config.tasks import SHARES
from launcher.console import csv_cell
from launcher.data.images import Reader
from launcher.files import atomic
from launcher.tasks import Task


@dataclass(frozen=True)
class EvaluatedImage:
    """An image with its label, its loss, and names with probabilities or numbers; or the reason it cannot be read."""

    file: str
    label: str = ""
    loss: float = math.nan
    predictions: Sequence[tuple[str, float]] = ()
    unreadable: str | None = None


class ImageRows:
    """Collects the images of an evaluation by one rank, with at most `top` classes where the task has one an image."""

    def __init__(self, task: Task, names: Sequence[str], top: int):
        self._task, self._names, self._top = task, names, top
        self._rows: list[tuple[str, float, list[tuple[str, float]]]] = []

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch, in the order of the images."""
        each = zip(outputs.split(1), targets.split(1), strict=True)
        losses = torch.stack([self._task.loss(*one) for one in each]).tolist()
        predictions = self._task.predictions(outputs, self._names, self._top)
        self._rows += zip(self._task.labels(targets, self._names), losses, predictions, strict=True)

    def of(self, reader: Reader, unreadable: Mapping[str, str]) -> list[EvaluatedImage]:
        """Return the images in their order, named by their reader, then the unreadable ones of its split."""
        rows = [EvaluatedImage(reader.name(number), *row) for number, row in enumerate(self._rows)]
        return rows + [
            EvaluatedImage(name.removeprefix(reader.place), unreadable=reason)
            for name, reason in unreadable.items()
            if name.startswith(reader.place)
        ]


def worst_first(images: Iterable[EvaluatedImage]) -> list[EvaluatedImage]:
    """Return the images by falling loss, those without a finite one first, unreadable ones last."""

    def place(one: EvaluatedImage) -> tuple[bool, float]:
        return one.unreadable is not None, -one.loss if math.isfinite(one.loss) else -math.inf

    return sorted(images, key=place)


def write_csv(path: Path, images: Iterable[EvaluatedImage], titles: tuple[str, str]) -> None:
    """Write a row for each prediction of each image, atomically; titles: of a prediction's name and number."""
    digits = ".6f" if titles[1] in SHARES else ".9g"
    with atomic.writing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["file", "label", "loss", "rank", *titles, "error"])
        for one in images:
            start = [csv_cell(one.file), csv_cell(one.label), "" if one.unreadable else f"{one.loss:.9g}"]
            for rank, (name, value) in enumerate(one.predictions, 1):
                writer.writerow([*start, rank, csv_cell(name), f"{value:{digits}}", ""])
            if not one.predictions:
                # note: each file has a row, also one without a class
                writer.writerow([*start, "", "", "", csv_cell(one.unreadable or "")])
