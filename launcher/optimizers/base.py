"""What the optimizers of this package share: their state, and changes that a step which is left out does not make.

Libraries' optimizers read the step's number or the learning rate on the host, and cannot be told on the device to leave
a step out. These go over weights, gradients and state in PyTorch's fused kernels, many tensors a launch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

Rate = float | Tensor


class MaskedOptimizer(Optimizer):
    """Where `found_inf`, float32 [] on the device, is 1, a step leaves weights and state as they are, bit for bit.

    A learning rate is a number, or float32 [] on the device. `number` is the run's own of the step that is taken.
    """

    def __init__(self, groups: list[dict[str, Any]], **settings: Any):
        super().__init__(groups, {**settings, "weight_decay": 0.0})
        self.found_inf: Tensor | None = None
        self.number = 0

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            if parameters := [p for p in group["params"] if p.grad is not None]:
                self._update(parameters, [p.grad for p in parameters], group)

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        raise NotImplementedError

    def _state(
        self, parameters: list[Tensor], name: str, start: Callable[[Tensor], Tensor] = torch.zeros_like
    ) -> list[Tensor]:
        """A state of each parameter by its name, which begins as `start` of the parameter."""
        for parameter in parameters:
            if name not in self.state[parameter]:
                self.state[parameter][name] = start(parameter)
        return [self.state[parameter][name] for parameter in parameters]

    def _count(self, group: dict[str, Any], device: torch.device) -> Tensor:
        """Count a step, unless it is left out; returns how many there were, float32 []."""
        steps: Tensor = group.get("step", torch.zeros(())).to(device, torch.float32)
        group["step"] = steps.add_(1 if self.found_inf is None else 1 - self.found_inf)
        return steps

    def _subtract(self, tensors: list[Tensor], directions: list[Tensor], rate: Rate, decay: float = 0.0) -> None:
        """tensors -= rate * (directions + decay * tensors)"""
        torch._fused_sgd_(
            tensors,
            directions,
            [],
            lr=rate,
            weight_decay=decay,
            momentum=0.0,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
            found_inf=self.found_inf,
        )

    def _move(self, averages: list[Tensor], values: list[Tensor], part: float) -> None:
        """averages += part * (values - averages)"""
        self._subtract(averages, list(torch._foreach_sub(averages, values)), part)

    def _adamw(
        self,
        targets: list[Tensor],
        gradients: list[Tensor],
        moments: tuple[list[Tensor], list[Tensor]],
        group: dict[str, Any],
        *,
        lr: Rate,
        beta1: float,
        weight_decay: float = 0.0,
        clip: Tensor | None = None,
    ) -> None:
        """Move Adam's moments by the gradients divided by `clip`, and the targets by AdamW's step."""
        torch._fused_adamw_(
            targets,
            gradients,
            *moments,
            [],
            [group["step"]] * len(targets),
            lr=lr,
            beta1=beta1,
            beta2=group["betas"][1],
            weight_decay=weight_decay,
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
            grad_scale=clip,
            found_inf=self.found_inf,
        )


def trust_ratios(
    weights: list[Tensor], directions: list[Tensor], *, trust: float = 1.0, decay: float = 0.0, eps: float = 0.0
) -> list[Tensor]:
    """`trust` * |w| / (|d| + decay * |w| + eps) of each tensor [], 1 where one of the two norms is 0."""
    ours, theirs = torch.stack(torch._foreach_norm(weights)), torch.stack(torch._foreach_norm(directions))
    ratios = trust * ours / (theirs + decay * ours + eps)
    return list(torch.where((ours > 0) & (theirs > 0), ratios, 1.0).unbind())
