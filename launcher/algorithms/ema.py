"""Exponential moving average of the weights (Polyak & Juditsky 1992), which is evaluated and saved."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from pydantic.dataclasses import dataclass

from launcher.algorithms.base import Algorithm
from launcher.compute.foreach import by_dtype
from launcher.config.declaration import RunPlan
from launcher.config.fields import STRICT, Duration, Within
from launcher.counts import count_of
from launcher.data.batch import Moment
from launcher.later import nn, no_grad, torch

if TYPE_CHECKING:
    from torch import Tensor

_MUCH_OF_THE_START = 0.05


@no_grad
def update_average(average: dict[str, Tensor], weights: dict[str, Tensor], rate: float) -> None:
    """Set `average = (1 - rate) * average + rate * weights` in place; counters are copied."""
    averaged = by_dtype(average[name] for name in weights)
    for old, new in zip(averaged, by_dtype(weights.values()), strict=True):
        if new[0].is_floating_point():
            torch._foreach_lerp_(old, new, rate)
        else:
            torch._foreach_copy_(old, new)


class Averaging(Algorithm):
    """Averages parameters and buffers; until the first update the model's own are evaluated."""

    def change_model(self, model: nn.Module) -> None:
        self._average, self._count = copied(model), 0

    def after_step(self, model: nn.Module, moment: Moment) -> None:
        update_average(self._average, model.state_dict(), self.rate())
        self._count += 1

    @abstractmethod
    def rate(self) -> float:
        """Return the weight of the current weights in the next update."""

    def evaluation_weights(self) -> dict[str, Tensor] | None:
        return self._average if self._count else None

    def state_dict(self) -> dict[str, Any]:
        return {"average": self._average, "count": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, tensor in state["average"].items():
            self._average[name].copy_(tensor)
        self._count = state["count"]


@dataclass(config=STRICT)
class EMA(Averaging, change_model=60, after_step=10, evaluation_weights=10):
    """Averages every `update_interval`, from the weights of the first update on, without bias correction."""

    half_life: Annotated[Duration, Within(0.05)]
    update_interval: Annotated[Duration, Within(0.01)]

    def acts_at(self, plan: RunPlan, step: int) -> int:
        return (step + 1) % plan.every(self.update_interval) == 0

    def notes(self, plan: RunPlan) -> Iterator[str]:
        first = plan.every(self.update_interval)
        half_life, tenth = max(1, plan.steps(self.half_life)), max(1, plan.total_steps // 10)
        remaining = 2 ** ((first - plan.total_steps) / half_life)
        if plan.total_steps >= first and remaining > _MUCH_OF_THE_START:
            shorter = f"algorithms.ema.half_life={tenth}ba"
            yield (
                f"the EMA half-life ({count_of(half_life, 'step')}) is too long for "
                f"{count_of(plan.total_steps, 'step')}; set {shorter if tenth < half_life else 'algorithms.ema=off'}"
            )

    def rate(self) -> float:
        plan = self.context.plan
        half_life, interval = max(1, plan.steps(self.half_life)), plan.every(self.update_interval)
        return 1 - decay(half_life, interval) if self._count else 1.0


def copied(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the weights and buffers."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def decay(half_life: float, interval: float) -> float:
    """Return the decay of the average per update every `interval` steps: one half after `half_life` steps."""
    return float(2 ** (-interval / half_life))
