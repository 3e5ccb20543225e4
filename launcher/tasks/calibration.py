"""Calibration of the probability of the predicted class: expected calibration error, and its drawing.

Guo et al., "On Calibration of Modern Neural Networks" (2017); bins of equal mass as Nixon et al. (2019).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from launcher.files import atomic
from launcher.files.outputs import image_options

_BINS = 15


class Bin(NamedTuple):
    """Images of similar confidence: the means of confidence and accuracy, and their number."""

    confidence: float
    accuracy: float
    images: int


class Reliability:
    """Collects confidences, the highest probabilities of images, and whether these classes are right."""

    def __init__(self, probabilities: Callable[[Tensor], Tensor]):
        self._probabilities = probabilities
        self._batches: list[tuple[Tensor, Tensor]] = []

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch: outputs [B, C], and classes int64 [B]."""
        self._batches.append((self._probabilities(outputs).amax(1), outputs.argmax(1) == targets))

    def bins(self) -> list[Bin]:
        """Return the bins of all images."""
        confidences, hits = (torch.cat(parts).double().cpu().numpy() for parts in zip(*self._batches, strict=True))
        return equal_mass(confidences, hits)


def equal_mass(confidences: np.ndarray, hits: np.ndarray, count: int = _BINS) -> list[Bin]:
    """Return bins by rising confidence with equal numbers of images, or one more in the first ones.

    Confidences and hits are float64 [N].
    """
    order = np.argsort(confidences, kind="stable")
    parts = np.array_split(order, min(count, len(order)))
    return [Bin(float(confidences[part].mean()), float(hits[part].mean()), len(part)) for part in parts]


def calibration_error(bins: list[Bin]) -> float:
    """Return the mean over images of the difference between confidence and accuracy of their bin."""
    return sum(one.images * abs(one.confidence - one.accuracy) for one in bins) / sum(one.images for one in bins)


def draw(bins: list[Bin], path: Path, title: str) -> None:
    """Draw accuracy over confidence in PNG, atomically."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5, 4.5), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.axline((0, 0), slope=1, color="grey", linewidth=1)
    axes.plot([one.confidence for one in bins], [one.accuracy for one in bins], marker="o")
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy")
    axes.set_title(f"{title}\nECE {calibration_error(bins):.2%}", loc="left", weight="bold", fontsize=9)
    with atomic.writing(path) as temporary:
        figure.savefig(temporary, **image_options())
