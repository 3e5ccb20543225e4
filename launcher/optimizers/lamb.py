"""LAMB: Adam's direction, scaled to the norm of each tensor."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from pydantic.dataclasses import dataclass

from launcher.config.fields import STRICT, Positive
from launcher.later import nn, no_grad, torch
from launcher.optimizers.adam import Adam
from launcher.optimizers.base import trust_ratios

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, config=STRICT)
class LAMB(Adam):
    """LAMB (You et al. 2020): Adam's direction, scaled to the norm of each tensor's weights if they have decay.

    With Adam's direction r without decay, of gradients clipped to the global norm `max_grad_norm` (null: not), and
    weight decay c:

        u = r + c * w
        w = w - lr * |w| / |u| * u       (w - lr * r where c = 0; the ratio is 1 where one of the norms is 0)
    """

    lacking = MappingProxyType({"mps": "a fused AdamW that scales gradients"})

    name: Literal["lamb"]
    max_grad_norm: Positive | None

    @no_grad
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        limit = self.max_grad_norm
        self._clip = None
        if limit is not None and gradients:
            self._clip = (nn.utils.get_total_norm(gradients) / limit).clamp(min=1.0).float()
        super().step()

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        directions = self._direction(parameters, gradients, group, self.beta1, corrected=True)
        if group["weight_decay"]:
            torch._foreach_add_(directions, parameters, alpha=group["weight_decay"])
            torch._foreach_mul_(directions, trust_ratios(parameters, directions))
        self._subtract(parameters, directions, group["lr"])
