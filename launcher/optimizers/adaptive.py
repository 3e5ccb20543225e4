"""LAMB, NAdamW and Schedule-Free AdamW: optimizers on Adam's moments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from launcher.optimizers.base import MaskedOptimizer, trust_ratios
from launcher.rank.peers import global_norm


class Adaptive(MaskedOptimizer):
    """Has Adam's settings and moments."""

    def __init__(
        self, groups: list[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float, **settings: Any
    ):
        super().__init__(groups, lr=lr, betas=betas, eps=eps, **settings)

    def _moments(self, parameters: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        return self._state(parameters, "exp_avg"), self._state(parameters, "exp_avg_sq")


class LAMB(Adaptive):
    """LAMB (You et al. 2020): Adam's direction, in each tensor as long as its weights; only what is decayed is scaled.

    With Adam's direction r of gradients clipped to the global norm `max_grad_norm` (null: as they are), without decay
    in it, and weight decay c:

        u = r + c * w
        w = w - lr * |w| / |u| * u       (w - lr * r where c = 0; the ratio is 1 where one of the norms is 0)
    """

    _clip: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        every = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        most = self.defaults["max_grad_norm"]
        self._clip = (global_norm(every) / most).clamp(min=1.0).float() if most is not None and every else None
        super().step()

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        self._count(group, parameters[0].device)
        directions = list(torch._foreach_mul(parameters, 0.0))
        # note: from zero, so that what is moved by a step is its direction
        moments, beta1 = self._moments(parameters), group["betas"][0]
        self._adamw(directions, gradients, moments, group, lr=-1.0, beta1=beta1, clip=self._clip)
        if group["weight_decay"]:
            torch._foreach_add_(directions, parameters, alpha=group["weight_decay"])
            torch._foreach_mul_(directions, trust_ratios(parameters, directions))
        self._subtract(parameters, directions, group["lr"])


class NAdamW(Adaptive):
    """Adam with decoupled decay and Nesterov's momentum, as AlgoPerf's baseline has it (Choi et al. 2019, table 1).

    With Adam's moments m and v of t steps, gradient g and weight decay c:

        n = (beta1 * m + (1 - beta1) * g) / (1 - beta1^t)
        w = w - lr * (n / (sqrt(v / (1 - beta2^t)) + eps) + c * w)

    torch.optim's NAdam is that of Dozat 2016, with a schedule for the momentum.
    """

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        steps = self._count(group, parameters[0].device)
        averages, squares = self._moments(parameters)
        # note: the moments alone move
        self._adamw(parameters, gradients, (averages, squares), group, lr=0.0, beta1=beta1)
        scales = torch._foreach_sqrt(squares)
        torch._foreach_div_(scales, (1 - beta2**steps).sqrt())
        torch._foreach_add_(scales, group["eps"])
        torch._foreach_mul_(scales, 1 - beta1**steps)
        directions = list(torch._foreach_lerp(averages, gradients, 1 - beta1))
        torch._foreach_div_(directions, scales)
        self._subtract(parameters, directions, group["lr"], group["weight_decay"])


class ScheduleFreeAdamW(Adaptive):
    """AdamW without a schedule (Defazio et al. 2024), as the authors' library computes it.

    The model's weights are y, where gradients g are taken; z is kept, and x, the average of z, follows from both:

        y = beta1 * x + (1 - beta1) * z
        z = z - lr * (g / (sqrt(v / (1 - beta2^k)) + eps) + c * y)        (v: Adam's, c: weight decay)
        x = (1 - p) * x + p * z           p = q / (sum of all q),  q = k^step_power * (highest lr so far)^lr_power
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        lr: float,
        betas: tuple[float, float],
        eps: float,
        step_power: float,
        lr_power: float,
    ):
        # note: the average's part of a step lies in other memory at every one, and forward passes come in between
        super().__init__(groups, lr, betas, eps, step_power=step_power, lr_power=lr_power, capturable=False)

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        beta1, lr = group["betas"][0], group["lr"]
        squares, ends = self._state(parameters, "exp_avg_sq"), self._state(parameters, "z", torch.clone)
        part = self._part(group, parameters[0].device)
        directions, firsts = (list(torch._foreach_mul(parameters, 0.0)) for _ in range(2))
        # note: from zero, so that what is moved by a step is its direction; without a first moment
        self._adamw(directions, gradients, (firsts, squares), group, lr=-1.0, beta1=0.0)
        if group["weight_decay"]:
            torch._foreach_add_(directions, parameters, alpha=group["weight_decay"])
        towards = list(torch._foreach_sub(parameters, ends))
        torch._foreach_mul_(towards, part)
        torch._foreach_add_(towards, torch._foreach_mul(directions, lr * (1 - beta1 * (1 - part))))
        self._subtract(parameters, towards, 1.0)
        self._subtract(ends, directions, lr)

    def _part(self, group: dict[str, Any], device: torch.device) -> Tensor:
        """Part of the average that this step's z becomes, float32 []; counts the step."""
        steps = self._count(group, device)
        lr = torch.as_tensor(group["lr"], dtype=torch.float32, device=device)
        highest, total = (group.get(name, torch.zeros(())).to(device) for name in ("highest_lr", "total_weight"))
        applied = torch.ones_like(steps) if self.found_inf is None else 1 - self.found_inf
        group["highest_lr"] = torch.where(applied > 0, torch.maximum(highest, lr), highest)
        weight = steps ** group["step_power"] * group["highest_lr"] ** group["lr_power"]
        group["total_weight"] = total + weight * applied
        return torch.where(group["total_weight"] > 0, weight / group["total_weight"], 0.0)

    def _averages(self, parameters: list[Tensor], beta1: float) -> list[Tensor]:
        return list(torch._foreach_lerp(parameters, [self.state[p]["z"] for p in parameters], 1 - 1 / beta1))

    @torch.no_grad()
    def averaged(self, model: nn.Module) -> dict[str, Tensor]:
        """The model's state dict with the averages x in the place of its weights."""
        state = dict(model.state_dict())
        names = {parameter: name for name, parameter in model.named_parameters()}
        for group in self.param_groups:
            if moved := [p for p in group["params"] if "z" in self.state[p]]:
                averages = self._averages(moved, group["betas"][0])
                state.update({names[p]: average for p, average in zip(moved, averages, strict=True)})
        return state

    @contextmanager
    def at_average(self) -> Iterator[None]:
        """Around it the model's weights are the averages x; after it they are what they were."""
        with torch.no_grad():
            moved = [
                (p, group["betas"][0]) for group in self.param_groups for p in group["params"] if "z" in self.state[p]
            ]
            parameters = [p for p, _ in moved]
            kept = [p.clone() for p in parameters]
            if moved:
                torch._foreach_copy_(parameters, self._averages(parameters, moved[0][1]))
            yield
            if moved:
                torch._foreach_copy_(parameters, kept)
