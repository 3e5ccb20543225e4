"""The active algorithms, called at each point of the loop in the order of the plan's table."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn

from launcher.algorithms.base import Algorithm, Context, DrawingAlgorithm, Gradients
from launcher.data.batch import Batch, Moment, to_device
from launcher.models.surgery import Surgery
from launcher.plan.order import NORMALIZE, acting


def build(context: Context) -> dict[str, Algorithm]:
    """Name to bound algorithm; each file of this folder names its class `ALGORITHM`."""
    return {
        name: importlib.import_module(f"launcher.algorithms.{name}").ALGORITHM(values, context)
        for name, values in context.plan.config.algorithms.active().items()
    }


class Engine:
    """Calls the active algorithms; has the same points as one algorithm."""

    def __init__(self, context: Context):
        self._active = build(context)
        self._algorithms = context.plan.config.algorithms

    def _at(self, point: str) -> list[Algorithm]:
        return [self._active[name] for name in acting(point, self._algorithms) if name != NORMALIZE]

    @property
    def active(self) -> dict[str, Algorithm]:
        """Name to bound algorithm."""
        return self._active

    @property
    def leaves_parameters_unused(self) -> bool:
        """Whether some steps leave parameters without gradients."""
        return any(algorithm.leaves_parameters_unused for algorithm in self._active.values())

    def change_model(self, model: nn.Module) -> None:
        for algorithm in self._at("change_model"):
            algorithm.change_model(model)

    def surgeries(self) -> dict[str, Surgery]:
        """By name and in order, the changes of the model that evaluation sees."""
        names = acting("change_model", self._algorithms)
        return {name: surgery for name in names if (surgery := self._active[name].surgery()) is not None}

    def change_order(self, order: np.ndarray, epoch: int) -> np.ndarray:
        """The sample indices [N] that an epoch reads."""
        for algorithm in self._at("change_order"):
            order = algorithm.change_order(order, epoch)
        return order

    @property
    def change_image(self) -> Callable[[np.ndarray, int, int], np.ndarray] | None:
        """What loader workers apply to (uint8 image [H, W, 3], sample index, epoch), if anything."""
        algorithms = self._at("change_image")
        return partial(_change_image, algorithms) if algorithms else None

    def change_batch(
        self,
        batch: Batch,
        model: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        normalize: Callable[[Tensor], Tensor],
    ) -> Batch:
        """Augment, normalise and mix a batch of uint8 images.

        All that is drawn goes to the device in one copy, in another what follows a choice among the pictures.
        """
        names = acting("change_batch", self._algorithms)
        choices = [number for number, name in enumerate(names, 1) if self._chooses(name)]
        for first, last in itertools.pairwise([0, *choices, len(names)]):
            drawn = self._draw(names[first:last], batch)
            for name in names[first:last]:
                if name == NORMALIZE:
                    batch = replace(batch, images=normalize(batch.images))
                elif name in drawn:
                    batch = drawn[name](batch)
                else:
                    batch = self._active[name].change_batch(batch, model, loss)
        return batch

    def _chooses(self, name: str) -> bool:
        return name != NORMALIZE and self._active[name].chooses_pictures

    def _draw(self, names: Sequence[str], batch: Batch) -> dict[str, Callable[[Batch], Batch]]:
        """By name, what the algorithms that draw do to the batch; what they have drawn is on its device."""
        (height, width), found = batch.images.shape[-2:], {}
        for name in names:
            if name != NORMALIZE:
                algorithm = self._active[name]
                if isinstance(algorithm, DrawingAlgorithm):
                    found[name] = algorithm.draw(batch, height, width)
                height, width = algorithm.size_after(height, width, batch.moment)
        arrays = [array for drawn in found.values() for array in drawn.arrays]
        tensors = iter(to_device(*arrays, device=batch.images.device))
        return {
            name: partial(_applied, drawn.apply, list(itertools.islice(tensors, len(drawn.arrays))))
            for name, drawn in found.items()
        }

    def compute_gradients(self, batch: Batch, model: nn.Module, gradients: Gradients) -> Tensor:
        """Compute a step's gradients; at most one algorithm changes how."""
        for algorithm in self._at("compute_gradients"):
            return algorithm.compute_gradients(batch, model, gradients)
        return gradients(batch)

    def change_gradients(self, model: nn.Module) -> None:
        for algorithm in self._at("change_gradients"):
            algorithm.change_gradients(model)

    def after_step(self, model: nn.Module, moment: Moment) -> None:
        for algorithm in self._at("after_step"):
            algorithm.after_step(model, moment)

    def evaluation_weights(self, model: nn.Module) -> dict[str, Tensor] | None:
        """The weights to evaluate with, if an algorithm keeps its own."""
        for algorithm in self._at("evaluation_weights"):
            if (weights := algorithm.evaluation_weights(model)) is not None:
                return weights
        return None

    def state_dict(self) -> dict[str, Any]:
        return {name: algorithm.state_dict() for name, algorithm in self._active.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, algorithm in self._active.items():
            algorithm.load_state_dict(state[name])


def _applied(apply: Callable[[Batch, Sequence[Tensor]], Batch], drawn: list[Tensor], batch: Batch) -> Batch:
    return apply(batch, drawn)


def _change_image(algorithms: list[Algorithm], image: np.ndarray, index: int, epoch: int) -> np.ndarray:
    for algorithm in algorithms:
        image = algorithm.change_image(image, index, epoch)
    return image
