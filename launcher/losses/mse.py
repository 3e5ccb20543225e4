"""The mean squared error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic.dataclasses import dataclass

from launcher.config.choices import LossConfig, LossFunction
from launcher.config.fields import STRICT
from launcher.config.tasks import TaskConfig
from launcher.later import F

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, config=STRICT)
class MSE(LossConfig):
    labels = ("numbers",)
    scores = "numbers"

    name: Literal["mse"]

    def function(self, task: TaskConfig) -> LossFunction:
        return mse


def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean squared error of float32 [B, K]."""
    return F.mse_loss(outputs, targets)
