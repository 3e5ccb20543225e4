"""The peak learning rate, after the warmup."""

from typing import Literal

from pydantic.dataclasses import dataclass

from launcher.config.choices import Clock, ScheduleConfig
from launcher.config.fields import STRICT


@dataclass(frozen=True, config=STRICT)
class Constant(ScheduleConfig):
    """No further values."""

    name: Literal["constant"]

    def after_warmup(self, clock: Clock) -> float:
        return 1.0
