"""The Huber loss: quadratic for small errors, linear for large ones (Huber 1964)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

from pydantic.dataclasses import dataclass

from launcher.config.choices import LossConfig, LossFunction
from launcher.config.fields import STRICT, Positive
from launcher.config.tasks import TaskConfig
from launcher.later import F

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, config=STRICT)
class Huber(LossConfig):
    """Squares errors up to `delta` standard deviations of the training targets; above it, the loss is linear."""

    labels = ("numbers",)
    scores = "numbers"

    name: Literal["huber"]
    delta: Positive

    def function(self, task: TaskConfig) -> LossFunction:
        return partial(huber, delta=self.delta)


def huber(outputs: Tensor, targets: Tensor, *, delta: float) -> Tensor:
    """Return the mean Huber loss of float32 [B, K]."""
    return F.huber_loss(outputs, targets, delta=delta)
