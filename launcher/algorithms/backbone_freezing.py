"""Backbone freezing (Kumar et al. 2022): only the last layer learns at first, as in linear probing."""

from torch import nn

from launcher.algorithms.base import Algorithm
from launcher.config.algorithms import BackboneFreezingConfig
from launcher.data.batch import Moment
from launcher.models.parameters import parameters_of_head


class BackboneFreezing(Algorithm[BackboneFreezingConfig]):
    """Sets before each step whether parameters outside the head need gradients; the optimizer skips the others."""

    changes_learning_parameters = True

    def before_step(self, model: nn.Module, moment: Moment) -> None:
        head = parameters_of_head(model)
        frozen = bool(self.values.acts_at(self.context.plan, moment.step))
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not frozen or name in head)
