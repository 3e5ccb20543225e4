"""Exponential moving average of the weights (Polyak & Juditsky 1992): the average is evaluated and saved."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from launcher.algorithms.base import Algorithm
from launcher.config.algorithms import EMAConfig, SWAConfig
from launcher.data.batch import Moment
from launcher.foreach import Snapshot, by_dtype

AveragingT = TypeVar("AveragingT", EMAConfig, SWAConfig)


@torch.no_grad()
def update_average(average: dict[str, Tensor], weights: dict[str, Tensor], part: float | Tensor) -> None:
    """`average = (1 - part) * average + part * weights`, in place; counters are copied.

    part: one that is on the device, float32 [], takes a launch a tensor.
    """
    averaged = by_dtype(average[name] for name in weights)
    for old, new in zip(averaged, by_dtype(weights.values()), strict=True):
        if new[0].is_floating_point():
            torch._foreach_lerp_(old, new, [part] * len(old) if isinstance(part, Tensor) else part)
        else:
            torch._foreach_copy_(old, new)


class Averaging(Algorithm[AveragingT]):
    """Keeps an average of parameters and buffers, which starts from the initial weights."""

    def change_model(self, model: nn.Module) -> None:
        self._average = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        # note: on the device, which alone knows how many updates were of steps that were not dropped
        self._count = torch.zeros((), dtype=torch.float64, device=next(model.parameters()).device)
        self._snapshot = Snapshot([*self._average.values(), self._count])

    def after_step(self, model: nn.Module, moment: Moment, applied: Tensor) -> None:
        if self.values.acts_at(self.context.plan, moment.step):
            self._snapshot.take()
            update_average(self._average, model.state_dict(), self.part())
            self._count += 1
            self._snapshot.restore_unless(applied)

    @abstractmethod
    def part(self) -> float | Tensor:
        """Part of the weights in the average after the next update."""

    def evaluation_weights(self) -> dict[str, Tensor] | None:
        return self._average

    def state_dict(self) -> dict[str, Any]:
        return {"average": self._average, "count": int(self._count)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, tensor in state["average"].items():
            self._average[name].copy_(tensor)
        self._count.fill_(state["count"])


class EMA(Averaging[EMAConfig]):
    """Averages every `update_interval`; no bias correction."""

    def part(self) -> float:
        plan = self.context.plan
        return 1 - keep_rate(max(1, plan.steps(self.values.half_life)), plan.every(self.values.update_interval))


def keep_rate(half_life: float, interval: float) -> float:
    """Part of the average that an update keeps: after `half_life` steps of updates every `interval`, one half."""
    return float(2 ** (-interval / half_life))
