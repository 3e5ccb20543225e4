"""A line from the peak to the final learning rate."""

from typing import Literal

from pydantic.dataclasses import dataclass

from launcher.config.choices import Clock, ScheduleConfig
from launcher.config.fields import STRICT, Probability


@dataclass(frozen=True, config=STRICT)
class Linear(ScheduleConfig):
    name: Literal["linear"]
    final: Probability

    def after_warmup(self, clock: Clock) -> float:
        return 1 + (self.final - 1) * clock.done
