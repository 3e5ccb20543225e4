"""Exponential moving average of the weights (Polyak & Juditsky 1992): the average is evaluated and saved."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from launcher.algorithms.base import Algorithm, Context
from launcher.config.algorithms import EMAConfig
from launcher.data.batch import Moment
from launcher.foreach import Snapshot, by_dtype


def keep_rate(half_life: float, interval: float) -> float:
    """Part of the average that an update keeps: after `half_life` steps of updates every `interval`, one half."""
    return float(2 ** (-interval / half_life))


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


class EMA(Algorithm[EMAConfig]):
    """Averages parameters and buffers every `update_interval`, from the initial weights; no bias correction."""

    def __init__(self, values: EMAConfig, context: Context):
        super().__init__(values, context)
        interval = context.plan.every(values.update_interval)
        self._keep = keep_rate(max(1, context.plan.steps(values.half_life)), interval)
        self._average: dict[str, Tensor] = {}

    def change_model(self, model: nn.Module) -> None:
        self._average = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        self._snapshot = Snapshot(self._average.values())

    def after_step(self, model: nn.Module, moment: Moment, applied: Tensor) -> None:
        if self.values.acts_at(self.context.plan, moment.step):
            self._snapshot.take()
            update_average(self._average, model.state_dict(), 1 - self._keep)
            self._snapshot.restore_unless(applied)

    def evaluation_weights(self) -> dict[str, Tensor]:
        return self._average

    def state_dict(self) -> dict[str, Any]:
        return {"average": self._average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, tensor in state["average"].items():
            self._average[name].copy_(tensor)
