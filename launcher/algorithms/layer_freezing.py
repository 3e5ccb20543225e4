"""Layer freezing (Raghu et al. 2017, Brock et al. 2017): the first layers stop learning, more of them with time."""

from __future__ import annotations

from torch import nn

from launcher.algorithms.base import Algorithm
from launcher.config.algorithms import LayerFreezingConfig
from launcher.data.batch import Moment


def frozen_layers(layers: int, progress: float, start: float, final_fraction: float) -> int:
    """Layers frozen at a part of the run: none up to `start`, then a fraction linear up to `final_fraction` at the end.

    The fraction is of all layers but the last, which always learns.
    """
    if progress <= start:
        return 0
    return int(final_fraction * (progress - start) / (1 - start) * (layers - 1))


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The modules that have parameters of their own, in the order of the forward pass."""
    return [module for module in model.modules() if next(module.parameters(recurse=False), None) is not None]


class LayerFreezing(Algorithm[LayerFreezingConfig]):
    """Decides before each step which layers need gradients; the optimizer leaves the others alone."""

    changes_learning_parameters = True

    def before_step(self, model: nn.Module, moment: Moment) -> None:
        layers = layers_of(model)
        frozen = frozen_layers(len(layers), moment.progress, self.values.start, self.values.final_fraction)
        for number, layer in enumerate(layers):
            for parameter in layer.parameters(recurse=False):
                parameter.requires_grad_(number >= frozen)
