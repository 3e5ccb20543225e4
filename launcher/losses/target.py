"""A loss by `_target_`: a function of outputs and targets, or a class whose instance is one, such as of torch.nn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic.dataclasses import dataclass

from launcher.config.choices import LossConfig, LossFunction, Scores
from launcher.config.fields import STRICT
from launcher.config.targets import Called
from launcher.config.tasks import TaskConfig
from launcher.later import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, config=STRICT)
class LossTargetConfig(Called, LossConfig):
    """Calls the target with outputs, float32 [B, ...], and targets, which algorithms may have mixed; returns the mean.

    probabilities: of the outputs, for predictions and exports; null: those of the task.
    """

    labels = ("class", "classes", "numbers")
    libraries = ("torch.nn", "timm.loss")
    leading = 2

    probabilities: Literal["softmax", "sigmoid"] | None

    @classmethod
    def defaults(cls, name: str) -> dict[str, Any]:
        return {"probabilities": None}

    @property
    def scores(self) -> Scores:  # type: ignore[override]
        return self.probabilities

    def function(self, task: TaskConfig) -> LossFunction:
        called = self.built()

        def loss(outputs: Tensor, targets: Tensor) -> Tensor:
            # note: compiled code has no such context
            if torch.compiler.is_compiling():
                return called(outputs.float(), targets)  # type: ignore[no-any-return]
            with self.naming("fails"):
                return _mean(called(outputs.float(), targets))

        return loss


def _mean(value: Any) -> Tensor:
    if not isinstance(value, torch.Tensor) or value.ndim:
        returned = f"shape {[*value.shape]}" if isinstance(value, torch.Tensor) else type(value).__name__
        raise TypeError(f"it returns {returned}, but must return the mean over samples, []")
    return value
