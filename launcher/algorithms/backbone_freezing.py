"""Backbone freezing (Kumar et al. 2022): only the last layer learns at first, as in linear probing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic.dataclasses import dataclass

from launcher.algorithms.base import Algorithm
from launcher.config.declaration import AlgorithmConfig, RunPlan
from launcher.config.fields import STRICT, Duration, Within
from launcher.counts import count_of
from launcher.data.batch import Moment
from launcher.errors import Problem
from launcher.later import nn


@dataclass(frozen=True, config=STRICT)
class BackboneFreezingConfig(
    AlgorithmConfig, before_step=20, excludes={"layer_freezing": "both choose the layers to freeze; use one"}
):
    until: Annotated[Duration, Within(0.1)]

    needs_pretrained = True

    def acts_at(self, plan: RunPlan, step: int) -> int:
        return step < plan.every(self.until)

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        if 0 < plan.total_steps <= plan.every(self.until):
            message = (
                f"must be less than the run's {count_of(plan.total_steps, 'step')}, such as 0.1dur, or train longer"
            )
            yield Problem(message, "until", self.until)


class BackboneFreezing(Algorithm[BackboneFreezingConfig]):
    """Sets before each step whether parameters outside the head need gradients; the optimizer skips the others."""

    changes_learning_parameters = True

    def before_step(self, model: nn.Module, moment: Moment) -> None:
        from launcher.models.parameters import parameters_of_head

        head = parameters_of_head(model)
        frozen = bool(self.values.acts_at(self.context.plan, moment.step))
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not frozen or name in head)
