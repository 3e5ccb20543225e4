"""The active algorithms, called at each point of the loop in the order of the plan's table."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn

from launcher.algorithms.base import Algorithm, Gradients, Setting
from launcher.config.algorithms import Algorithms
from launcher.data.batch import Batch, Moment
from launcher.models.surgery import Surgery
from launcher.plan.order import NORMALIZE, acting


def build(algorithms: Algorithms, setting: Setting) -> dict[str, Algorithm]:
    """Name to bound algorithm; each file of this folder names its class `ALGORITHM`."""
    return {
        name: importlib.import_module(f"launcher.algorithms.{name}").ALGORITHM(values, setting)
        for name, values in algorithms.active().items()
    }


class Engine:
    """Calls the active algorithms; has the same points as one algorithm."""

    def __init__(self, algorithms: Algorithms, setting: Setting):
        self._active = build(algorithms, setting)
        self._algorithms = algorithms
        self._setting = setting

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
        """Augment, normalise and mix a batch of uint8 images."""
        for name in acting("change_batch", self._algorithms):
            if name == NORMALIZE:
                batch = batch.having(images=normalize(batch.images))
            else:
                batch = self._active[name].change_batch(batch, model, loss)
        return batch

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


def _change_image(algorithms: list[Algorithm], image: np.ndarray, index: int, epoch: int) -> np.ndarray:
    for algorithm in algorithms:
        image = algorithm.change_image(image, index, epoch)
    return image
