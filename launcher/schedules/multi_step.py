"""Steps down at milestones."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic.dataclasses import dataclass

from launcher.config.choices import Clock, ScheduleConfig
from launcher.config.declaration import RunPlan
from launcher.config.fields import STRICT, Duration, Probability, Within
from launcher.counts import count_of
from launcher.errors import Problem


@dataclass(frozen=True, config=STRICT)
class MultiStep(ScheduleConfig):
    name: Literal["multi_step"]
    milestones: list[Annotated[Duration, Within(0.9)]]
    gamma: Probability

    def after_warmup(self, clock: Clock) -> float:
        return float(self.gamma ** sum(clock.at >= clock.steps(milestone) for milestone in self.milestones))

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        late = [m for m in self.milestones if plan.schedule_steps(m) >= plan.total_steps > 0]
        if late:
            end = f"the end of the run ({count_of(plan.epochs, 'epoch')})"
            message = f"{', '.join(late)} is past {end}; remove it or train longer"
            yield Problem(message, "schedule.milestones", self.milestones)
