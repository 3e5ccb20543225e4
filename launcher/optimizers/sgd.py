"""SGD with momentum, and weight decay in the gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic.dataclasses import dataclass

from launcher.config.fields import STRICT
from launcher.optimizers.momentum import Momentum, NesterovConfig

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, config=STRICT)
class SGDConfig(NesterovConfig):
    name: Literal["sgd"]


class SGD(Momentum[SGDConfig]):
    """SGD with momentum, as torch.optim computes it.

    With gradient g, weight decay c and momentum m:

        b = m * b + g + c * w          (b = g + c * w at the first step)
        w = w - lr * b                 (Nesterov: lr * (g + c * w + m * b))

    torch.optim's fused SGD does not initialize the momentum if the very first step is dropped.
    """

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        self._descend(parameters, gradients, group["lr"], group["weight_decay"], self.values.nesterov)
