"""A schedule by `_target_`: a function of the progress after the warmup, or a class whose instance is one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from pydantic.dataclasses import dataclass

from launcher.config.choices import Clock, ScheduleConfig
from launcher.config.declaration import RunPlan
from launcher.config.fields import STRICT
from launcher.config.targets import Called
from launcher.errors import Problem, Problems


@dataclass(frozen=True, config=STRICT)
class ScheduleTarget(Called, ScheduleConfig):
    """Calls the target with the completed fraction of what follows the warmup; returns a factor of the peak."""

    leading = 1

    @classmethod
    def unset(cls, name: str) -> dict[str, Any]:
        values = {"warmup": "0ep", "warmup_start": 0.0, "warmup_includes_peak": False}
        return values | {"dilate": 1.0, "fit": "off", "granularity": "step"}

    @cached_property
    def _function(self) -> Any:
        return self.built()

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        problems = Problems()
        for tenth in range(10):
            with problems.collected():
                self._at(tenth / 10)
        yield from problems[:1]

    def after_warmup(self, clock: Clock) -> float:
        return self._at(clock.done)

    def _at(self, progress: float) -> float:
        with self.naming(f"fails at progress {progress:.4g}"):
            value = float(self._function(progress))
            if not 0 <= value < math.inf:
                raise ValueError(f"it returns {value}, but must return a factor of the peak learning rate")
            return value
