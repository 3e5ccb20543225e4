"""Right and wrong predictions of classes: a table by class, the confusion matrix, and a gallery of images."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from launcher.counts import count_of
from launcher.data.batch import START
from launcher.data.loading import EvaluationLoader
from launcher.data.sampling import Request
from launcher.errors import one_line
from launcher.files import atomic, page
from launcher.files.outputs import image_options
from launcher.tasks import Details, Row, Task
from launcher.tasks.calibration import Reliability, calibration_error, draw
from launcher.tasks.images import displayed

_MOST_DRAWN, _MOST_NUMBERED, _MOST_SHOWN = 40, 20, 24


class Judged(NamedTuple):
    """An evaluated image: its number, its class, and the predicted class with its probability."""

    number: int
    label: str
    prediction: str
    probability: float


class Confusion(Details):
    """Counts the images of a task's classes by true and predicted class; `with_images` keeps the prediction of each.

    probabilities: those of outputs, whose calibration is measured.
    """

    key = "by_class"
    heading: ClassVar[Sequence[str]] = ("class", "images", "recall (top-1)", "precision", "most confused with")

    def __init__(
        self,
        task: Task,
        classes: Sequence[str],
        *,
        with_images: bool,
        probabilities: Callable[[Tensor], Tensor] | None = None,
    ):
        self.classes = [*classes]
        # note: rows are true classes
        self._counts = torch.zeros(len(classes), len(classes), dtype=torch.int64)
        self._task = task if with_images else None
        self._judged: list[Judged] = []
        self._reliability = Reliability(probabilities) if probabilities else None

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        self._counts = self._counts.to(outputs.device)
        # note: bincount would synchronize host and device
        places = targets * len(self._counts) + outputs.argmax(1)
        self._counts.view(-1).index_add_(0, places, torch.ones_like(targets))
        if self._reliability:
            self._reliability.add(outputs, targets)
        if self._task is None:
            return
        likeliest = self._task.predictions(outputs, self.classes, 1)
        for label, ((prediction, probability),) in zip(targets.tolist(), likeliest, strict=True):
            self._judged.append(Judged(len(self._judged), self.classes[label], prediction, probability))

    @property
    def counts(self) -> np.ndarray:
        """The confusion matrix, int64 [classes, classes]."""
        return self._counts.cpu().numpy()

    def rows(self) -> list[Row]:
        return by_class(self.classes, self.counts)

    def texts(self, row: Row) -> list[str]:
        shares = ("-" if row[name] is None else f"{row[name]:.1%}" for name in ("top1", "precision"))
        confused = f"{row['confused_with']} ({row['confused']:,})" if row["confused_with"] is not None else "-"
        return [str(row["name"]), f"{row['images']:,}", *shares, confused]

    def values(self) -> dict[str, object]:
        return {**super().values(), "classes": self.classes, "confusion": self.counts.tolist()}

    def write(self, folder: Path, title: str) -> list[Path]:
        """Write also confusion.png, the matrix, and reliability.png, accuracy over confidence."""
        drawing = folder / "confusion.png"
        with atomic.writing(drawing) as temporary:
            _draw(self.classes, self.counts, temporary, title)
        drawings = [drawing]
        if self._reliability:
            drawings.append(folder / "reliability.png")
            draw(self._reliability.bins(), drawings[-1], title)
        return [*super().write(folder, title), *drawings]

    def calibration_error(self) -> float | None:
        return calibration_error(self._reliability.bins()) if self._reliability else None

    def accuracy_by_level(self) -> list[float]:
        numbers = [name.split("/") for name in self.classes]
        levels = max(map(len, numbers)) - 1
        return [self._accuracy(["/".join(parts[: level + 1]) for parts in numbers]) for level in range(levels)]

    def _accuracy(self, parents: Sequence[str]) -> float:
        """Return the share of images whose predicted class has the parent of the true one."""
        _, of_class = np.unique(np.array(parents, dtype=object).astype(str), return_inverse=True)
        return float(self.counts[of_class[:, None] == of_class].sum() / self.counts.sum())

    def sections(self, loader: EvaluationLoader) -> str:
        wrong = sorted((one for one in self._judged if one.prediction != one.label), key=lambda one: -one.probability)
        right = sorted((one for one in self._judged if one.prediction == one.label), key=lambda one: one.probability)
        of_all = f"of {count_of(len(self._judged), 'image')} are predicted as"
        return page.section(
            "Most confident errors",
            f"{len(wrong):,} {of_all} another class; shown are those with the highest probability",
            self._figures(wrong[:_MOST_SHOWN], loader),
        ) + page.section(
            "Least confident hits",
            f"{len(right):,} {of_all} their class; shown are those with the lowest probability",
            self._figures(right[:_MOST_SHOWN], loader),
        )

    def _figures(self, chosen: Sequence[Judged], loader: EvaluationLoader) -> str:
        """Return the images as the network gets them, with file, label, prediction and probability."""
        if not chosen:
            return "<p>none</p>"
        request = Request(START, np.array([one.number for one in chosen]), loader.view)
        images, _, _ = next(iter(loader.reader.batches([request])))
        shown = []
        for one, pixels in zip(chosen, self.pixels(images, chosen), strict=True):
            lines = (f"<b>{page.text(one.label)}</b>", f"predicted {page.text(one.prediction)}, {one.probability:.1%}")
            caption = "<br>".join([*lines, f'<span class="hint">{page.text(loader.reader.name(one.number))}</span>'])
            shown.append((pixels, f"{one.label}, predicted {one.prediction}", caption))
        return page.figures(shown)

    def pixels(self, images: Tensor, chosen: Sequence[Judged]) -> np.ndarray:
        """Return loaded images [B, C, H, W] as RGB to look at, uint8 [B, H, W, 3]."""
        assert self._task is not None
        dataset = self._task.config.dataset
        return displayed(images / dataset.largest, dataset)


def by_class(classes: Sequence[str], confusion: np.ndarray) -> list[Row]:
    """Return each class of a confusion matrix int64 [classes, classes], lowest top-1 first, without images last.

    Ties are ordered by the number of wrong predictions, then by class. `top1` is the recall of its images, `precision`
    that of the images `predicted` as it; most of its other images, `confused`, are predicted as `confused_with`.
    """
    right, images, predicted = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    wrong = confusion - np.diag(right)
    order = sorted(
        range(len(classes)), key=lambda n: (images[n] == 0, right[n] / max(1, images[n]), -wrong[n].sum(), n)
    )
    return [
        {
            "name": classes[n],
            "images": int(images[n]),
            "top1": float(right[n] / images[n]) if images[n] else None,
            "predicted": int(predicted[n]),
            "precision": float(right[n] / predicted[n]) if predicted[n] else None,
            "confused_with": classes[int(wrong[n].argmax())] if wrong[n].any() else None,
            "confused": int(wrong[n].max()),
        }
        for n in order
    ]


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
    shades = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    bar = figure.colorbar(shades, ax=axes, shrink=0.6)
    bar.set_label("share of the images of the true class (row)", fontsize=8)
    names = [one_line(classes[number]).replace("$", r"\$") for number in chosen]
    axes.set_xticks(range(len(chosen)), names, rotation=90, fontsize=7)
    axes.set_yticks(range(len(chosen)), names, fontsize=7)
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    if len(chosen) < len(classes):
        title += f"\nthe {len(chosen)} most confused of {count_of(len(classes), 'class')}"
    axes.set_title(title, loc="left", weight="bold", fontsize=9)
    if len(chosen) <= _MOST_NUMBERED:
        for row, column in zip(*counts.nonzero(), strict=True):
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, f"{counts[row, column]:,}", ha="center", va="center", fontsize=6, color=colour)
    figure.savefig(path, **image_options())
