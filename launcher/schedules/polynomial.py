"""A power of the remaining run."""

from typing import Literal

from pydantic.dataclasses import dataclass

from launcher.config.choices import Clock, ScheduleConfig
from launcher.config.fields import STRICT, Positive, Probability


@dataclass(frozen=True, config=STRICT)
class Polynomial(ScheduleConfig):
    """Its time runs from the peak, which a warmup that includes it reaches a step earlier, as in NVIDIA's entries."""

    name: Literal["polynomial"]
    final: Probability
    power: Positive

    def after_warmup(self, clock: Clock) -> float:
        # note: a warmup that includes its peak ends there, so the next step already decays
        done = clock.done + self.warmup_includes_peak * clock.stair / max(1, clock.total - clock.warmup)
        return float(self.final + (1 - self.final) * (1 - done) ** self.power)
