"""The momentum of SGD and LARS: one average of gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

from pydantic.dataclasses import dataclass

from launcher.config.choices import OptimizerConfig
from launcher.config.declaration import RunPlan
from launcher.config.fields import STRICT, Probability
from launcher.errors import Problem
from launcher.later import torch
from launcher.optimizers.base import MaskedOptimizer, Rate

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, config=STRICT)
class MomentumConfig(OptimizerConfig):
    momentum: Probability


@dataclass(frozen=True, config=STRICT)
class NesterovConfig(MomentumConfig):
    nesterov: bool

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        if self.nesterov and not self.momentum:
            message = "needs momentum above 0; set optimizer.nesterov=false for plain SGD"
            yield Problem(message, "optimizer.nesterov", self.nesterov)


# note: m * -0.0 + g is exactly g at the first step
def _minus_zero(like: Tensor) -> Tensor:
    return torch.full_like(like, -0.0)


Values = TypeVar("Values", bound=MomentumConfig)


class Momentum(MaskedOptimizer[Values]):
    """Has the momentum b = m * b + g of gradients g, with b = g at the first step."""

    def _descend(
        self, parameters: list[Tensor], gradients: list[Tensor], lr: Rate, decay: float = 0.0, nesterov: bool = False
    ) -> None:
        momentum = self.values.momentum
        buffers = self._state(parameters, "momentum_buffer", _minus_zero) if momentum else []
        self._sgd(parameters, gradients, buffers, lr, decay, momentum, nesterov)
