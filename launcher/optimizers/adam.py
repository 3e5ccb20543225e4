"""Adam's settings and moments, for the optimizers that have them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pydantic.dataclasses import dataclass

from launcher.config.choices import Beta
from launcher.config.fields import STRICT, Positive
from launcher.later import torch
from launcher.optimizers.base import MaskedOptimizer, Rate

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, config=STRICT)
class Adam(MaskedOptimizer):
    """Has Adam's settings and moments, and takes AdamW's step; subclasses override the step."""

    beta1: Beta
    beta2: Beta
    epsilon: Positive

    def set_up(self, groups: list[dict[str, Any]], lr: float) -> None:
        super().set_up(groups, lr)
        self._clip: Tensor | None = None

    def _moments(self, parameters: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        return self._state(parameters, "exp_avg"), self._state(parameters, "exp_avg_sq")

    def _adamw(
        self,
        targets: list[Tensor],
        gradients: list[Tensor],
        moments: tuple[list[Tensor], list[Tensor]],
        steps: Tensor,
        *,
        lr: Rate,
        beta1: float,
        weight_decay: float = 0.0,
    ) -> None:
        """Update Adam's moments by the gradients divided by `_clip`, and the targets by AdamW's step."""
        torch._fused_adamw_(
            targets,
            gradients,
            *moments,
            [],
            [steps] * len(targets),
            lr=lr,
            beta1=beta1,
            beta2=self.beta2,
            weight_decay=weight_decay,
            eps=self.epsilon,
            amsgrad=False,
            maximize=False,
            grad_scale=self._clip,
            found_inf=self.found_inf,
        )

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        """Take AdamW's step as torch.optim computes it."""
        steps = self._count(group, parameters[0].device)
        settings = {"lr": group["lr"], "beta1": self.beta1, "weight_decay": group["weight_decay"]}
        self._adamw(parameters, gradients, self._moments(parameters), steps, **settings)

    def _direction(
        self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any], beta1: float, corrected: bool
    ) -> list[Tensor]:
        """Return Adam's direction without decay; counts the step and updates the moments, only the second if beta1 = 0.

        corrected: divide the moments by 1 - beta^step.
        """
        steps = self._count(group, parameters[0].device)
        # note: 1 - beta^inf is 1
        steps = steps if corrected else torch.full_like(steps, math.inf)
        directions = list(torch._foreach_mul(parameters, 0.0))
        squares = self._state(parameters, "exp_avg_sq")
        averages = self._state(parameters, "exp_avg") if beta1 else list(torch._foreach_mul(parameters, 0.0))
        # note: a step from zero with lr -1 is the direction
        self._adamw(directions, gradients, (averages, squares), steps, lr=-1.0, beta1=beta1)
        return directions

    def _nadam(
        self, parameters: list[Tensor], gradients: list[Tensor], steps: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Update the moments; return NAdamW's averages, without bias correction, and its direction without decay."""
        beta1, beta2 = self.beta1, self.beta2
        averages, squares = self._moments(parameters)
        # note: a learning rate of 0 only updates the moments
        self._adamw(parameters, gradients, (averages, squares), steps, lr=0.0, beta1=beta1)
        scales = torch._foreach_sqrt(squares)
        torch._foreach_div_(scales, (1 - beta2**steps).sqrt())
        torch._foreach_add_(scales, self.epsilon)
        torch._foreach_mul_(scales, 1 - beta1**steps)
        ahead = list(torch._foreach_lerp(averages, gradients, 1 - beta1))
        return ahead, list(torch._foreach_div(ahead, scales))
