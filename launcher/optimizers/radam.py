"""RAdam: Adam whose steps are rectified, or without its denominator at first."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from pydantic.dataclasses import dataclass

from launcher.config.fields import STRICT
from launcher.later import torch
from launcher.optimizers.adam import Adam, AdamConfig

if TYPE_CHECKING:
    from torch import Tensor

# The length of the average from which on the variance of the denominator is rectified.
_LEAST_LENGTH = 5


@dataclass(frozen=True, config=STRICT)
class RAdamConfig(AdamConfig):
    lacking = MappingProxyType({"mps": "float64"})

    name: Literal["radam"]
    decoupled_weight_decay: bool


class RAdam(Adam[RAdamConfig]):
    """Rectified Adam (Liu et al. 2020, arXiv:1908.03265), as torch.optim computes it.

    With Adam's moments m and v of t steps, and the length r = 2 / (1 - beta2) - 1 of the average of v:

        r_t = r - 2 * t * beta2^t / (1 - beta2^t)
        c = sqrt((r_t - 4) * (r_t - 2) * r / ((r - 4) * (r - 2) * r_t))
        w = w - lr * m / (1 - beta1^t) * (c * sqrt(1 - beta2^t) / (sqrt(v) + eps) if r_t > 5 else 1)

    Weight decay is added to gradients, or decoupled as AdamW's.
    """

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        values, decay = self.values, group["weight_decay"]
        if decay and not values.decoupled_weight_decay:
            gradients, decay = list(torch._foreach_add(gradients, parameters, alpha=decay)), 0.0
        steps = self._count(group, parameters[0].device)
        averages, squares = self._moments(parameters)
        # note: a learning rate of 0 only updates the moments
        self._adamw(parameters, gradients, (averages, squares), steps, lr=0.0, beta1=values.beta1)
        scales = torch._foreach_sqrt(squares)
        torch._foreach_add_(scales, values.epsilon)
        directions = list(torch._foreach_div(averages, scales))
        rectified, plain = self._factors(steps)
        torch._foreach_mul_(directions, rectified)
        torch._foreach_add_(directions, torch._foreach_mul(averages, plain))
        self._subtract(parameters, directions, group["lr"], decay)

    def _factors(self, steps: Tensor) -> tuple[Tensor, Tensor]:
        """Return the factors of m / (sqrt(v) + eps) and of m, float32 [], of which one is 0."""
        # note: r_t is a small difference of large numbers
        steps, beta2 = steps.double(), self.values.beta2
        most, remaining = 2 / (1 - beta2) - 1, 1 - beta2**steps
        length = most - 2 * steps * beta2**steps / remaining
        rectified = (length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length) * remaining
        is_long, correction = length > _LEAST_LENGTH, 1 - self.values.beta1**steps
        factors = torch.where(is_long, rectified.sqrt(), 0.0), torch.where(is_long, 0.0, 1.0)
        return (factors[0] / correction).float(), (factors[1] / correction).float()
