"""Backbone freezing (Kumar et al. 2022, linear probing before fine-tuning): at first only the last layer learns."""

from __future__ import annotations

from torch import nn

from launcher.algorithms.base import Algorithm
from launcher.config.algorithms import BackboneFreezingConfig
from launcher.data.batch import Moment
from launcher.models.parameters import parameters_of_head


class BackboneFreezing(Algorithm[BackboneFreezingConfig]):
    """Decides before each step whether all but the head need gradients; the optimizer leaves the others alone."""

    changes_learning_parameters = True

    def before_step(self, model: nn.Module, moment: Moment) -> None:
        head = parameters_of_head(model)
        frozen = bool(self.values.acts_at(self.context.plan, moment.step))
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not frozen or name in head)
