"""Binary cross-entropy of each class by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

from pydantic.dataclasses import dataclass

from launcher.config.choices import LossFunction
from launcher.config.fields import STRICT, Fraction
from launcher.config.tasks import TaskConfig
from launcher.data.batch import one_hot
from launcher.errors import Problem, UserError
from launcher.later import F, nn
from launcher.losses.class_weights import ClassWeights

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, config=STRICT)
class BCE(ClassWeights):
    """Targets above `target_threshold` count as 1 and others as 0, as in timm; null keeps mixed and smoothed ones."""

    labels = ("class", "classes")
    scores = "sigmoid"

    name: Literal["bce"]
    log_classes_bias: bool
    target_threshold: Fraction | None

    def function(self, task: TaskConfig) -> LossFunction:
        return partial(bce, threshold=self.target_threshold, of_samples=task.labelled == "class")

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
    threshold: float | None = None,
    of_samples: bool = True,
) -> Tensor:
    """Return the binary cross-entropy of logits, summed over classes and averaged over samples.

    weights: of classes, float32 [C]; `of_samples` multiplies all terms of a sample by the mean weight of its target.
    threshold: targets above it count as 1, and others as 0.
    """
    soft = one_hot(targets, logits.shape[1]).float()
    soft = soft if threshold is None else (soft > threshold).float()
    if weights is not None and of_samples:
        weights = (soft * weights).sum(1, keepdim=True)
    total = F.binary_cross_entropy_with_logits(logits.float(), soft, weights, reduction="sum")
    return total / len(logits)
