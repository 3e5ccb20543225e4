"""Losses by `_target_`: functions of outputs and targets, or classes whose instances are such, as torch.nn's."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic.dataclasses import dataclass

from launcher.config.choices import LossConfig, LossFunction, Scores
from launcher.config.fields import STRICT, Positive
from launcher.config.targets import Called
from launcher.config.tasks import TaskConfig
from launcher.later import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, config=STRICT)
class LossOfNumbers(Called, LossConfig):
    """Calls the target with outputs, float32 [B, ...], and targets, which algorithms may mix; returns the mean."""

    labels: ClassVar[tuple[str, ...]] = ("numbers",)
    scores: ClassVar[Scores] = "numbers"
    libraries = ("torch.nn", "timm.loss")
    leading = 2
    stated = MappingProxyType({"delta": Positive})

    def function(self, task: TaskConfig) -> LossFunction:
        called = self.built()

        def loss(outputs: Tensor, targets: Tensor) -> Tensor:
            # note: compiled code has no such context
            if torch.compiler.is_compiling():
                return called(outputs.float(), targets)  # type: ignore[no-any-return]
            with self.naming("fails"):
                return _mean(called(outputs.float(), targets))

        return loss


@dataclass(frozen=True, config=STRICT)
class LossTarget(LossOfNumbers):
    """A loss of the user's, for any labels.

    probabilities: of the outputs, for predictions and exports; null: those of the task.
    """

    labels = ("class", "classes", "numbers")
    packaged = LossOfNumbers

    probabilities: Literal["softmax", "sigmoid"] | None

    @classmethod
    def unset(cls, name: str) -> dict[str, Any]:
        return {"probabilities": None}

    @property
    def scores(self) -> Scores:  # type: ignore[override]
        return self.probabilities


def _mean(value: Any) -> Tensor:
    if not isinstance(value, torch.Tensor) or value.ndim:
        returned = f"shape {[*value.shape]}" if isinstance(value, torch.Tensor) else type(value).__name__
        raise TypeError(f"it returns {returned}, but must return the mean over samples, []")
    return value
