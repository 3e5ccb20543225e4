"""Cross-entropy of one class an image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic.dataclasses import dataclass

from launcher.config.choices import LossFunction
from launcher.config.fields import STRICT
from launcher.config.tasks import TaskConfig
from launcher.later import F
from launcher.losses.class_weights import ClassWeights

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, config=STRICT)
class CrossEntropy(ClassWeights):
    labels = ("class",)
    scores = "softmax"

    name: Literal["cross_entropy"]

    def function(self, task: TaskConfig) -> LossFunction:
        return cross_entropy


def cross_entropy(logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the mean over samples of -sum(weight * target * log softmax(logits)).

    weights: of classes, float32 [C]. For class indices torch's mean is divided by their sum over the batch, which would
    depend on the number of ranks; this one is not.
    """
    logits, targets = logits.float(), targets.float() if targets.is_floating_point() else targets
    if weights is None:
        return F.cross_entropy(logits, targets)
    return F.cross_entropy(logits, targets, weights, reduction="sum") / len(logits)
