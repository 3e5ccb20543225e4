"""The most confident errors and the least confident hits of an evaluation, as a page's sections."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from launcher import page
from launcher.data.loaders import EvaluationLoader
from launcher.data.sampling import Request
from launcher.tasks import Task

_MOST = 24


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
        errors = sorted(wrong, key=lambda one: -one.probability)[:_MOST]
        hits = sorted(right, key=lambda one: one.probability)[:_MOST]
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
