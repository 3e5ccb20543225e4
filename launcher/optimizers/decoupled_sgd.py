"""SGD with momentum, and weight decay outside of the gradient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from pydantic.dataclasses import dataclass

from launcher.config.declaration import RunPlan
from launcher.config.fields import STRICT, Probability
from launcher.errors import Problem
from launcher.later import torch
from launcher.optimizers.base import MaskedOptimizer
from launcher.optimizers.target import needs_momentum

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, config=STRICT)
class DecoupledSGD(MaskedOptimizer):
    """SGD with momentum and weight decay outside of the gradient (SGDW, Loshchilov & Hutter 2019).

    With gradient g, momentum m and peak learning rate lr0:

        b = m * b + g          (b = g at the first step)
        w = w * (1 - lr / lr0 * weight_decay)
        w = w - lr * b         (Nesterov: lr * (g + m * b))

    The decay follows the schedule's multiplier, not the magnitude of the learning rate. lr0 is the `lr` of `set_up`,
    saved as `peak_lr` of the groups.
    """

    name: Literal["decoupled_sgd"]
    momentum: Probability
    nesterov: bool

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        yield from needs_momentum(self)

    def set_up(self, groups: list[dict[str, Any]], lr: float) -> None:
        super().set_up([{"peak_lr": lr * group.get("lr_factor", 1.0), **group} for group in groups], lr)

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        decay = group["weight_decay"] / group["peak_lr"] if group["peak_lr"] else 0.0
        lr = group["lr"] if self.found_inf is None else group["lr"] * (1 - self.found_inf)
        if decay:
            torch._foreach_mul_(parameters, 1 - decay * lr)
        momentum = self.momentum
        buffers = self._state(parameters, "momentum_buffer", _minus_zero) if momentum else []
        self._sgd(parameters, gradients, buffers, group["lr"], 0.0, momentum, self.nesterov)


# note: m * -0.0 + g is exactly g at the first step
def _minus_zero(like: Tensor) -> Tensor:
    return torch.full_like(like, -0.0)
