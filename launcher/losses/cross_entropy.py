"""Cross-entropy of one class an image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic.dataclasses import dataclass

from launcher.config.choices import LossFunction
from launcher.config.fields import STRICT, NotNegative
from launcher.config.tasks import TaskConfig
from launcher.later import F
from launcher.losses.class_weights import ClassWeights

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, config=STRICT)
class CrossEntropy(ClassWeights):
    """Adds `logit_adjustment` * log(share of the class in the training images) to the logits in training.

    Menon et al., "Long-tail learning via logit adjustment" (ICLR 2021), equation 10.
    """

    labels = ("class",)
    scores = "softmax"

    name: Literal["cross_entropy"]
    logit_adjustment: NotNegative

    def function(self, task: TaskConfig) -> LossFunction:
        return cross_entropy

    def of_classes(self, counts: np.ndarray, images: int) -> dict[str, np.ndarray]:
        weights, counts = super().of_classes(counts, images), np.maximum(counts, 1)
        if not self.logit_adjustment:
            return weights
        return {**weights, "added": self.logit_adjustment * np.log(counts / counts.sum())}


def cross_entropy(
    logits: Tensor, targets: Tensor, weights: Tensor | None = None, *, added: Tensor | None = None
) -> Tensor:
    """Return the mean over samples of -sum(weight * target * log softmax(logits + added)).

    added: to the logits of each class, float32 [C].
    weights: of classes, float32 [C]. For class indices torch's mean is divided by their sum over the batch, which would
    depend on the number of ranks; this one is not.
    """
    logits, targets = logits.float(), targets.float() if targets.is_floating_point() else targets
    logits = logits if added is None else logits + added
    if weights is None:
        return F.cross_entropy(logits, targets)
    return F.cross_entropy(logits, targets, weights, reduction="sum") / len(logits)
