"""Stochastic weight averaging (Izmailov et al. 2018): the mean of the weights at the end of training."""

from __future__ import annotations

from typing import Annotated

from pydantic.dataclasses import dataclass

from launcher.algorithms.ema import Averaging
from launcher.config.declaration import RunPlan
from launcher.config.fields import STRICT, Duration, Within


@dataclass(config=STRICT)
class SWA(
    Averaging,
    change_model=70,
    after_step=20,
    evaluation_weights=20,
    excludes={"ema": "both replace the weights to evaluate and save; use one"},
):
    """Averages the weights after `start` and every `update_interval` from then on; whole epochs at their ends.

    Batch-norm statistics are averaged too, instead of being recomputed by another pass over the data.
    """

    start: Annotated[Duration, Within(0.7)]
    update_interval: Annotated[Duration, Within(0.05)]

    def acts_at(self, plan: RunPlan, step: int) -> int:
        start, interval = plan.every(self.start), plan.every(self.update_interval)
        if interval % plan.steps_per_epoch == 0:
            start = -(-start // plan.steps_per_epoch) * plan.steps_per_epoch
        return (step + 1 >= start) & ((step + 1 - start) % interval == 0)

    def rate(self) -> float:
        return 1 - self._count / (self._count + 1)
