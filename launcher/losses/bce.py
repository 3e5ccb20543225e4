"""Binary cross-entropy of each class by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic.dataclasses import dataclass

from launcher.config.choices import LossFunction
from launcher.config.fields import STRICT, Fraction, OnePerClass, Positive
from launcher.config.tasks import TaskConfig
from launcher.data.batch import one_hot
from launcher.errors import Problem, UserError
from launcher.later import F, nn
from launcher.losses.class_weights import ClassWeights

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, config=STRICT)
class BCE(ClassWeights):
    """Targets above `target_threshold` count as 1 and others as 0, as in timm; null keeps mixed and smoothed ones.

    `pos_weight` multiplies the term of a class that is present; `balanced` is the number of training images without the
    class over that with it, so that both have the same total weight.
    """

    labels = ("class", "classes")
    scores = "sigmoid"

    name: Literal["bce"]
    log_classes_bias: bool
    target_threshold: Fraction | None
    pos_weight: Literal["none", "balanced"] | Positive | OnePerClass

    def function(self, task: TaskConfig) -> LossFunction:
        return partial(bce, threshold=self.target_threshold, of_samples=task.labelled == "class")

    def of_classes(self, counts: np.ndarray, images: int) -> dict[str, np.ndarray]:
        weights = super().of_classes(counts, images)
        match self.pos_weight:
            case "none":
                return weights
            case "balanced":
                present = np.maximum(images - counts, 1) / np.maximum(counts, 1)
            case list():
                present = np.array(self.pos_weight, np.float64)
            case number:
                present = np.full(len(counts), number, np.float64)
        return {**weights, "pos_weight": present}

    def initialize(self, layers: Sequence[nn.Module], outputs: int) -> None:
        """Set the bias to -log(outputs) if `log_classes_bias`."""
        for layer in layers if self.log_classes_bias else ():
            if not isinstance(layer.bias, nn.Parameter):
                message = "the model's last layer has no bias; set this key to false"
                raise UserError(Problem(message, "loss.log_classes_bias", True))
            nn.init.constant_(layer.bias, -math.log(outputs))


def bce(
    logits: Tensor,
    targets: Tensor,
    weights: Tensor | None = None,
    *,
    pos_weight: Tensor | None = None,
    threshold: float | None = None,
    of_samples: bool = True,
) -> Tensor:
    """Return the binary cross-entropy of logits, summed over classes and averaged over samples.

    weights: of classes, float32 [C]; `of_samples` multiplies all terms of a sample by the mean weight of its target.
    pos_weight: of the terms of present classes, float32 [C].
    threshold: targets above it count as 1, and others as 0.
    """
    soft = one_hot(targets, logits.shape[1]).float()
    soft = soft if threshold is None else (soft > threshold).float()
    if weights is not None and of_samples:
        weights = (soft * weights).sum(1, keepdim=True)
    total = F.binary_cross_entropy_with_logits(logits.float(), soft, weights, reduction="sum", pos_weight=pos_weight)
    return total / len(logits)
