"""LARS: layers move by a fraction of their norm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic.dataclasses import dataclass

from launcher.config.fields import STRICT, NotNegative, Positive
from launcher.later import torch
from launcher.optimizers.base import trust_ratios
from launcher.optimizers.momentum import Momentum, MomentumConfig

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, config=STRICT)
class LARSConfig(MomentumConfig):
    name: Literal["lars"]
    trust_coefficient: Positive
    epsilon: NotNegative


class LARS(Momentum[LARSConfig]):
    """LARS (You et al. 2017): tensors with weight decay move by a fraction of their norm, the others as with SGD.

    With gradient g, weight decay c, momentum m and trust coefficient t:

        r = t * |w| / (|g| + c * |w| + eps)        (1 where |w| or |g| is 0, or c is)
        b = m * b + r * (g + c * w)
        w = w - lr * b

    The momentum contains no learning rate, as in timm and, by a factor lr / last lr on m, in NVIDIA's MLPerf entries.
    """

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        if decay := group["weight_decay"]:
            trust, eps = self.values.trust_coefficient, self.values.epsilon
            ratios = trust_ratios(parameters, gradients, trust=trust, decay=decay, eps=eps)
            gradients = list(torch._foreach_add(gradients, parameters, alpha=decay))
            torch._foreach_mul_(gradients, ratios)
        self._descend(parameters, gradients, group["lr"])
