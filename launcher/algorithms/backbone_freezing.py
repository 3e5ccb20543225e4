"""Backbone freezing (Kumar et al. 2022): only the last layer learns at first, as in linear probing.

In several stages it is gradual unfreezing (Howard and Ruder 2018): the other layers start to learn from the last on. To
the end of the run it is a linear probe (Alain and Bengio 2016), whose network is in evaluation mode.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic.dataclasses import dataclass

from launcher.algorithms.base import Algorithm
from launcher.config.declaration import RunPlan
from launcher.config.fields import STRICT, Count, Duration, Within
from launcher.counts import count_of
from launcher.data.batch import Moment
from launcher.errors import Problem
from launcher.later import nn


@dataclass(config=STRICT)
class BackboneFreezing(
    Algorithm, before_step=20, excludes={"layer_freezing": "both choose the layers to freeze; use one"}
):
    """Sets before each step whether parameters outside the head need gradients; the optimizer skips the others."""

    needs_pretrained = True
    changes_learning_parameters = True

    until: Annotated[Duration, Within(0.1)]
    stages: Count

    def acts_at(self, plan: RunPlan, step: int) -> int:
        """Return how many stages of the layers do not learn yet: all at first, 0 from `until` on."""
        return max(0, self.stages - self.stages * step // plan.every(self.until))

    def probes(self, plan: RunPlan) -> bool:
        return plan.every(self.until) >= plan.total_steps

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        if 0 < plan.total_steps < plan.every(self.until):
            steps = count_of(plan.total_steps, "step")
            message = f"is longer than the run's {steps}; set 0.1dur, or 1dur to train only the last layer"
            yield Problem(message, "until", self.until)
        elif self.stages > 1 and self.probes(plan):
            message = f"parts start to learn before until={self.until}, the end of the run; set 1, or a shorter until"
            yield Problem(message, "stages", self.stages)
        if self.stages > plan.every(self.until):
            message = f"more than the {count_of(plan.every(self.until), 'step')} of until={self.until}; set fewer"
            yield Problem(message, "stages", self.stages)

    def notes(self, plan: RunPlan) -> Iterator[str]:
        if self.probes(plan):
            yield (
                f"algorithms.backbone_freezing.until={self.until} is the whole run: only the last layer learns, with "
                "no backward pass through the others, and in evaluation mode: no dropout, fixed batch-norm statistics"
            )

    def set_up(self) -> None:
        self._of_parameters: dict[str, int] | None = None

    def before_step(self, model: nn.Module, moment: Moment) -> None:
        frozen = self.acts_at(self.context.plan, moment.step)
        if self.probes(self.context.plan):
            model.eval()
        stages = self._stages(model)
        for name, parameter in model.named_parameters():
            # note: those of the head have none
            parameter.requires_grad_(stages.get(name, self.stages) >= frozen)

    def _stages(self, model: nn.Module) -> dict[str, int]:
        """Return the stage of each parameter outside the head by name, from 0 for the first layers."""
        from launcher.models.parameters import layer_depths, parameters_of_head

        if self._of_parameters is None:
            head = parameters_of_head(model)
            depths = {name: depth for name, depth in layer_depths(model).items() if name not in head}
            layers = sorted({*depths.values()})
            self._of_parameters = {
                name: layers.index(depth) * self.stages // len(layers) for name, depth in depths.items()
            }
        return self._of_parameters
