"""Layer freezing (Raghu et al. 2017, Brock et al. 2017): the first layers stop learning, more and more of them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from launcher.algorithms.base import Algorithm
from launcher.config.declaration import RunPlan
from launcher.config.fields import STRICT
from launcher.data.batch import Moment
from launcher.later import nn

_LEVELS = 4


def frozen_layers(layers: int, progress: float, start: float, final_fraction: float) -> int:
    """Return the number of frozen layers: 0 up to `start`, then a fraction that grows linearly to `final_fraction`.

    progress: of the run, in [0, 1]. The fraction is of all layers but the last, which always learns.
    """
    if progress <= start:
        return 0
    return int(final_fraction * ((progress - start) / (1 - start)) * (layers - 1))


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Return the modules that have their own parameters, in the order of the forward pass."""
    return [module for module in model.modules() if next(module.parameters(recurse=False), None) is not None]


@dataclass(config=STRICT)
class LayerFreezing(Algorithm, before_step=10):
    """Sets before each step which layers need gradients; the optimizer skips the others."""

    changes_learning_parameters = True

    start: Annotated[float, Field(ge=0, lt=1)]
    final_fraction: Annotated[float, Field(ge=0, le=1)]

    def acts_at(self, plan: RunPlan, step: int) -> int:
        """Return a level that rises by one per quarter of the freezing, from 1 on; 0 before its start."""
        done = (step / plan.total_steps - self.start) / (1 - self.start)
        return (done > 0) + sum(_LEVELS * done > level + 0.5 for level in range(_LEVELS))

    def before_step(self, model: nn.Module, moment: Moment) -> None:
        layers = layers_of(model)
        frozen = frozen_layers(len(layers), moment.progress, self.start, self.final_fraction)
        for number, layer in enumerate(layers):
            for parameter in layer.parameters(recurse=False):
                parameter.requires_grad_(number >= frozen)
