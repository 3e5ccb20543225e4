"""Lookahead (Zhang et al. 2019) as in airbench (Jordan 2024): the weights return to their moving average."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from launcher.algorithms.base import Algorithm
from launcher.config.declaration import RunPlan
from launcher.config.fields import STRICT, Duration, Fraction, NotNegative, Within
from launcher.data.batch import Moment


@dataclass(config=STRICT)
class Lookahead(Algorithm, change_model=80, after_step=5):
    """Averages parameters and floating-point buffers every `update_interval` from `start` on, and continues from there.

    The first update copies the weights. They are also set to the average, which stays, at the end of the run.
    """

    start: Annotated[Duration, Within(0.3)]
    update_interval: Annotated[Duration, Within(0.02)]
    decay: Fraction
    power: NotNegative

    def updates_at(self, plan: RunPlan, step: Any) -> Any:
        """Return whether the average is updated after a step, or after each of an array of steps."""
        return (step >= plan.steps(self.start)) & ((step + 1) % plan.every(self.update_interval) == 0)

    def acts_at(self, plan: RunPlan, step: int) -> Any:
        ends_run = step + 1 == plan.total_steps
        return self.updates_at(plan, step) | ((step >= plan.steps(self.start)) & ends_run)

    def rate(self, plan: RunPlan, step: int) -> float:
        """Return the weight of the current weights in the update after a step."""
        decay = self.decay ** plan.every(self.update_interval)
        return float(1 - decay * ((step + 1) / plan.total_steps) ** self.power)

    def change_model(self, model: nn.Module) -> None:
        self._average = {name: tensor.detach().clone() for name, tensor in _averaged(model).items()}
        self._count = 0

    @torch.no_grad()
    def after_step(self, model: nn.Module, moment: Moment) -> None:
        plan, step = self.context.plan, moment.step
        updates = bool(self.updates_at(plan, step))
        rate = (self.rate(plan, step) if updates else 0.0) if self._count else 1.0
        for name, weights in _averaged(model).items():
            self._average[name].lerp_(weights, rate)
            weights.copy_(self._average[name])
        self._count += updates

    def state_dict(self) -> dict[str, Any]:
        return {"average": self._average, "count": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, tensor in state["average"].items():
            self._average[name].copy_(tensor)
        self._count = state["count"]


def _averaged(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in model.state_dict().items() if tensor.is_floating_point()}
