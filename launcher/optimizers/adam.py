"""AdamW, NAdamW and LAMB: optimizers with Adam's moments."""

import math
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from launcher.config.choices import AdamConfig, AdamWConfig, LAMBConfig, NAdamWConfig
from launcher.optimizers.base import MaskedOptimizer, Rate, trust_ratios

Values = TypeVar("Values", bound=AdamConfig)


class Adam(MaskedOptimizer[Values]):
    """Has Adam's settings and moments, and takes AdamW's step; subclasses override the step."""

    _clip: Tensor | None = None

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
            beta2=self.values.beta2,
            weight_decay=weight_decay,
            eps=self.values.epsilon,
            amsgrad=False,
            maximize=False,
            grad_scale=self._clip,
            found_inf=self.found_inf,
        )

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        """Take AdamW's step as torch.optim computes it."""
        steps = self._count(group, parameters[0].device)
        settings = {"lr": group["lr"], "beta1": self.values.beta1, "weight_decay": group["weight_decay"]}
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
        beta1, beta2 = self.values.beta1, self.values.beta2
        averages, squares = self._moments(parameters)
        # note: a learning rate of 0 only updates the moments
        self._adamw(parameters, gradients, (averages, squares), steps, lr=0.0, beta1=beta1)
        scales = torch._foreach_sqrt(squares)
        torch._foreach_div_(scales, (1 - beta2**steps).sqrt())
        torch._foreach_add_(scales, self.values.epsilon)
        torch._foreach_mul_(scales, 1 - beta1**steps)
        ahead = list(torch._foreach_lerp(averages, gradients, 1 - beta1))
        return ahead, list(torch._foreach_div(ahead, scales))


class AdamW(Adam[AdamWConfig]):
    """AdamW (Loshchilov & Hutter 2019), as torch.optim computes it."""


class NAdamW(Adam[NAdamWConfig]):
    """Adam with decoupled decay and Nesterov momentum, as in AlgoPerf's baseline (Choi et al. 2019, table 1).

    With Adam's moments m and v of t steps, gradient g and weight decay c:

        n = (beta1 * m + (1 - beta1) * g) / (1 - beta1^t)
        w = w - lr * (n / (sqrt(v / (1 - beta2^t)) + eps) + c * w)

    torch.optim's NAdam is the version of Dozat 2016, with a schedule for the momentum.
    """

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        steps = self._count(group, parameters[0].device)
        _, directions = self._nadam(parameters, gradients, steps)
        self._subtract(parameters, directions, group["lr"], group["weight_decay"])


class LAMB(Adam[LAMBConfig]):
    """LAMB (You et al. 2020): Adam's direction, scaled to the norm of each tensor's weights if they have decay.

    With Adam's direction r without decay, of gradients clipped to the global norm `max_grad_norm` (null: not), and
    weight decay c:

        u = r + c * w
        w = w - lr * |w| / |u| * u       (w - lr * r where c = 0; the ratio is 1 where one of the norms is 0)
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        limit = self.values.max_grad_norm
        self._clip = None
        if limit is not None and gradients:
            self._clip = (nn.utils.get_total_norm(gradients) / limit).clamp(min=1.0).float()
        super().step()

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        directions = self._direction(parameters, gradients, group, self.values.beta1, corrected=True)
        if group["weight_decay"]:
            torch._foreach_add_(directions, parameters, alpha=group["weight_decay"])
            torch._foreach_mul_(directions, trust_ratios(parameters, directions))
        self._subtract(parameters, directions, group["lr"])
