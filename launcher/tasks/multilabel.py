"""Multi-label classification: a separate probability for each class; metrics are exact over all images and ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic.dataclasses import dataclass

from launcher.config.fields import STRICT
from launcher.config.goals import Metric
from launcher.data.class_names import STATES, in_order
from launcher.errors import Problem, UserError
from launcher.later import torch
from launcher.tasks import Details, Row
from launcher.tasks.classification import ranked
from launcher.tasks.images import ImageTask

if TYPE_CHECKING:
    from torch import Tensor

    from launcher.config.schema import Columns


def _is_set(text: str, columns: list[str]) -> bool:
    """Return whether a column's value states that an image has its label.

    Raises UserError if it is neither 0 nor 1.
    """
    if (state := STATES.get(text.lower())) is None:
        raise UserError(Problem(f"has the value {text}; write 1 or 0", "dataset.columns.label", columns))
    return state


@dataclass(config=STRICT)
class Multilabel(ImageTask):
    """Targets are 1 for the classes of an image and 0 for the others, float32 [B, classes]; also mixed or smoothed.

    threshold: the least probability of a class that is predicted, from the last evaluation; without it, an evaluation
    chooses one.

    Any number of the classes in each image.

    mAP is the mean average precision over classes with images, as scikit-learn's. F1 counts all labels together
    (micro), at the threshold of the probabilities that has the highest F1 on the evaluated images.
    """

    metrics = (
        Metric("map", "mAP", about="mean average precision of the classes"),
        Metric("f1", "F1", about="F1 of all labels together, at the threshold"),
        Metric("threshold", "threshold", compares=False),
    )
    weighs_classes = True
    labelled = "classes"
    facts = ("threshold",)
    gathers = True

    name: Literal["multilabel"]

    def read_labels(self, texts: Sequence[str], columns: Columns) -> tuple[list[str], list[Any]]:
        rows = [[part.strip() for part in text.split(columns.separator)] for text in texts]
        if isinstance(columns.label, list):
            return columns.label, [[_is_set(part, columns.label) for part in row] for row in rows]
        present = [{*filter(None, row)} for row in rows]
        names = in_order(set().union(*present))
        return names, [[name in row for name in names] for row in present]

    def of_evaluation(self, metrics: Mapping[str, float]) -> dict[str, Any]:
        return {"threshold": metrics["threshold"]}

    def set_up(self, threshold: float | None = None) -> None:
        # note: float64, as scores next to it may be equal in float32
        self._threshold = None if threshold is None else np.float64(threshold)
        self.threshold = 0.5 if threshold is None else threshold

    def targets(self, labels: Tensor) -> Tensor:
        return labels.float()

    def states(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return {"both": torch.stack([outputs, targets], 1)}

    def evaluated(self, states: Mapping[str, Tensor], samples: int) -> dict[str, float]:
        # note: not contiguous, so that sigmoid computes all values alike, and equal outputs have equal scores
        outputs, targets = states["both"].unbind(1)
        scores, truth = outputs.sigmoid().numpy(), targets.numpy() > 0
        precisions = [average_precision(*column) for column in zip(scores.T, truth.T, strict=True)]
        mean = float(np.nanmean(precisions)) if truth.any() else float("nan")
        own = self._threshold
        known = None if own is None else (f1(scores >= own, truth), float(own))
        best, threshold = known or best_threshold(scores, truth)
        return {"map": mean, "f1": best, "threshold": threshold}

    def details(self, names: Sequence[str], *, with_images: bool) -> ByLabel:
        return ByLabel(names, self.threshold)

    def predictions(self, outputs: Tensor, names: Sequence[str], top: int) -> list[list[tuple[str, float]]]:
        """Return all classes from the threshold on, likeliest first."""
        best = ranked(outputs.float().sigmoid())
        rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [[(names[n], p) for n, p in zip(*row, strict=True) if p >= self.threshold] for row in rows]


def average_precision(scores: np.ndarray, truth: np.ndarray) -> float:
    """Return the sum of precision times gain in recall over the distinct scores [N], falling; NaN without a true one.

    As scikit-learn's `average_precision_score`; equal for any order of the images.
    """
    ends, hits = _by_threshold(scores, truth)
    return float((np.diff(hits, prepend=0) * hits / (ends + 1)).sum() / hits[-1]) if hits[-1] else float("nan")


def f1(predicted: np.ndarray, truth: np.ndarray) -> float:
    """Return the F1 of all labels together, bool [N, C]; 0 without any."""
    return float(2 * (predicted & truth).sum() / max(1, predicted.sum() + truth.sum()))


def best_threshold(scores: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    """Return the highest F1 of all labels together, and a threshold of the probabilities [N, C] that has it.

    It lies in the middle between two scores, so that rounding in another program changes no prediction.
    """
    scores = scores.reshape(-1)
    ends, hits = _by_threshold(scores, truth.reshape(-1))
    values = 2 * hits / (ends + 1 + hits[-1])
    best = int(values.argmax())
    distinct = np.append(np.sort(scores)[::-1][ends].astype(np.float64), 0.0)
    return float(values[best]), float(distinct[best : best + 2].mean())


def _by_threshold(scores: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the last place of each distinct score, falling, and the number of true ones up to there, int64 [T]."""
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    return ends, np.cumsum(truth[order], dtype=np.int64)[ends]


class ByLabel(Details):
    """Average precision, precision, recall and F1 of each class at a threshold."""

    key = "by_class"
    heading = ("class", "images", "average precision", "recall", "precision", "F1")

    def __init__(self, names: Sequence[str], threshold: float):
        self._names, self._threshold = names, np.float64(threshold)
        self._batches: list[tuple[Tensor, Tensor]] = []

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        self._batches.append((outputs.float().sigmoid(), targets))

    def rows(self) -> list[Row]:
        """Return the values of each class, lowest average precision first; None where they are undefined."""
        scores, truth = (torch.cat(parts).cpu().numpy() for parts in zip(*self._batches, strict=True))
        rows: list[Row] = []
        for name, score, true in zip(self._names, scores.T, truth.T > 0, strict=True):
            predicted, images = score >= self._threshold, int(true.sum())
            hits, count = int((predicted & true).sum()), int(predicted.sum())
            rows.append(
                {
                    "name": name,
                    "images": images,
                    "average_precision": average_precision(score, true) if images else None,
                    "recall": hits / images if images else None,
                    "precision": hits / count if count else None,
                    "f1": 2 * hits / (images + count) if images + count else None,
                }
            )
        return sorted(rows, key=lambda row: (row["average_precision"] is None, row["average_precision"]))

    def texts(self, row: Row) -> list[str]:
        return [_shown(name, value) for name, value in row.items()]

    def values(self) -> dict[str, object]:
        return {**super().values(), "threshold": float(self._threshold)}


def _shown(name: str, value: str | float | None) -> str:
    """Return the text of a cell."""
    if value is None or isinstance(value, str):
        return value or "-"
    return f"{value:,}" if name == "images" else f"{value:.1%}"
