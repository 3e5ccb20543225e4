"""Half a cosine from the peak to the final learning rate (Loshchilov & Hutter 2017)."""

import math
from typing import Literal

from pydantic.dataclasses import dataclass

from launcher.config.choices import Clock, ScheduleConfig
from launcher.config.fields import STRICT, Probability


@dataclass(frozen=True, config=STRICT)
class Cosine(ScheduleConfig):
    """The cosine starts at the end of the warmup, or with `counts_warmup` at the start of the run.

    It ends with the run: the last step is one short of the final value.
    With `progress: compute` a step has the learning rate of a run whose images all have its size, at the same fraction
    of the pixels that the run processes (EfficientTrain++, Wang et al. 2024).
    """

    name: Literal["cosine"]
    final: Probability
    counts_warmup: bool
    progress: Literal["steps", "compute"]

    @property
    def counts_compute(self) -> bool:
        return self.progress == "compute"

    def after_warmup(self, clock: Clock) -> float:
        done = clock.at / clock.total if self.counts_warmup else clock.done
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * done)) / 2
