"""The mean absolute error."""

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
class L1(LossConfig):
    labels = ("numbers",)
    scores = "numbers"

    name: Literal["l1"]

    def function(self, task: TaskConfig) -> LossFunction:
        return l1


def l1(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean absolute error of float32 [B, K]."""
    return F.l1_loss(outputs, targets)
