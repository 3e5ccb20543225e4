"""Lion: the signs of an average of gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic.dataclasses import dataclass

from launcher.config.choices import Beta, OptimizerConfig
from launcher.config.fields import STRICT
from launcher.later import torch
from launcher.optimizers.base import MaskedOptimizer

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, config=STRICT)
class LionConfig(OptimizerConfig):
    name: Literal["lion"]
    beta1: Beta
    beta2: Beta


class Lion(MaskedOptimizer[LionConfig]):
    """Lion (Chen et al. 2023): every weight moves by lr, in the direction of an average of gradients.

    With gradient g and weight decay c:

        w = w - lr * (sign(beta1 * m + (1 - beta1) * g) + c * w)
        m = beta2 * m + (1 - beta2) * g
    """

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        averages = self._state(parameters, "exp_avg")
        signs = list(torch._foreach_sign(torch._foreach_lerp(averages, gradients, 1 - self.values.beta1)))
        self._subtract(parameters, signs, group["lr"], group["weight_decay"])
        self._average(averages, gradients, 1 - self.values.beta2)
