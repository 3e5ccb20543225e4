"""The active algorithms, called at each point of the loop in the order of their declarations."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn

from launcher.algorithms.base import Algorithm, ChoosingAlgorithm, Context, DrawingAlgorithm, Gradients, Loss
from launcher.config.declaration import NORMALIZE, POINTS, AlgorithmConfig
from launcher.data.batch import Batch, Moment, to_device
from launcher.models.surgery import Surgery

# What is done to a batch at one place of their order.
Change = Callable[[Batch], Batch]


def class_of(name: str, declaration: type[AlgorithmConfig]) -> type[Algorithm[AlgorithmConfig]]:
    """What does a method's work: the class in the file of its name that is called as its declaration, less `Config`."""
    module = importlib.import_module(f"launcher.algorithms.{name}")
    found: type[Algorithm[AlgorithmConfig]] = getattr(module, declaration.__name__.removesuffix("Config"))
    return found


def build(context: Context) -> dict[str, Algorithm[AlgorithmConfig]]:
    """Name to bound algorithm."""
    active = context.plan.config.algorithms.active()
    return {name: class_of(name, type(values))(values, context) for name, values in active.items()}


class Engine:
    """Calls the active algorithms; has the same points as one algorithm."""

    def __init__(self, context: Context):
        self._active = build(context)
        self._choosing = {name: one for name, one in self._active.items() if isinstance(one, ChoosingAlgorithm)}
        self._setting = {name for name, one in self._active.items() if one.sets_model}
        self.apply: Callable[[Sequence[Change], Batch], Batch] = one_after_the_other
        self._acting = {point: context.plan.config.algorithms.acting(point) for point in POINTS}

    def _at(self, point: str) -> list[Algorithm[AlgorithmConfig]]:
        return [self._active[name] for name in self._acting[point]]

    @property
    def active(self) -> dict[str, Algorithm[AlgorithmConfig]]:
        """Name to bound algorithm."""
        return self._active

    @property
    def changing_parameters(self) -> list[str]:
        """Names of the algorithms that change which parameters learn."""
        return [name for name, algorithm in self._active.items() if algorithm.changes_what_learns]

    def change_model(self, model: nn.Module, initial: Mapping[str, Tensor] | None = None) -> None:
        """Change the network; all its weights become `initial`, where given, before any average of them is begun."""
        names, averages = self._acting["change_model"], self._acting["evaluation_weights"]
        for name in names:
            if name not in averages:
                self._active[name].change_model(model)
        if initial is not None:
            model.load_state_dict(initial)
        for name in names:
            if name in averages:
                self._active[name].change_model(model)

    def surgeries(self) -> dict[str, Surgery]:
        """By name and in order, the changes of the model that evaluation sees."""
        names = self._acting["change_model"]
        return {name: surgery for name in names if (surgery := self._active[name].surgery()) is not None}

    def change_order(self, order: np.ndarray) -> np.ndarray:
        """The sample indices [N] that an epoch reads."""
        for algorithm in self._at("change_order"):
            order = algorithm.change_order(order)
        return order

    @property
    def change_image(self) -> Callable[[np.ndarray, int, int], np.ndarray] | None:
        """What loader workers apply to (uint8 image [H, W, 3], sample index, epoch), if anything."""
        algorithms = self._at("change_image")
        return partial(_change_image, algorithms) if algorithms else None

    def before_step(self, model: nn.Module, moment: Moment) -> None:
        for algorithm in self._at("before_step"):
            algorithm.before_step(model, moment)

    def change_batch(self, batch: Batch, model: nn.Module, loss: Loss, normalize: Callable[[Tensor], Tensor]) -> Batch:
        """Augment, normalise and mix a batch of uint8 images.

        All that is drawn goes to the device in one copy, in another what follows a choice among the pictures.
        """
        names = self._acting["change_batch"]
        choices = [number for number, name in enumerate(names, 1) if name in self._choosing]
        for first, last in itertools.pairwise([0, *choices, len(names)]):
            changes = self._changes(names[first:last], batch, normalize)
            batch = self.apply([changes[name] for name in changes if name not in self._setting], batch)
            for name in (name for name in changes if name in self._setting):
                batch = changes[name](batch)
            if last in choices:
                batch = self._choosing[names[last - 1]].choose(batch, model, loss)
        return batch

    def _changes(self, names: Sequence[str], batch: Batch, normalize: Callable[[Tensor], Tensor]) -> dict[str, Change]:
        """By name and in order, what is done to the batch before a choice; what is drawn for it is on its device."""
        (height, width), drawn = batch.images.shape[-2:], {}
        for name in names:
            if name != NORMALIZE:
                algorithm = self._active[name]
                if isinstance(algorithm, DrawingAlgorithm):
                    drawn[name] = algorithm.draw(batch, height, width)
                height, width = algorithm.size_after(height, width, batch.moment)
        tensors = iter(to_device(*(a for one in drawn.values() for a in one.arrays), device=batch.images.device))
        changes: dict[str, Change] = {}
        for name in names:
            if name == NORMALIZE:
                changes[name] = partial(_normalized, normalize)
            elif name in drawn:
                changes[name] = partial(
                    _applied, drawn[name].apply, list(itertools.islice(tensors, len(drawn[name].arrays)))
                )
            elif name not in self._choosing:
                changes[name] = self._active[name].change_batch
        return changes

    def compute_gradients(self, batch: Batch, model: nn.Module, gradients: Gradients) -> Tensor:
        """Compute a step's gradients; at most one algorithm changes how."""
        for algorithm in self._at("compute_gradients"):
            return algorithm.compute_gradients(batch, model, gradients)
        return gradients(batch)

    def change_gradients(self, model: nn.Module) -> None:
        for algorithm in self._at("change_gradients"):
            algorithm.change_gradients(model)

    def after_step(self, model: nn.Module, moment: Moment, applied: Tensor) -> None:
        for algorithm in self._at("after_step"):
            algorithm.after_step(model, moment, applied)

    def evaluation_weights(self) -> dict[str, Tensor] | None:
        """The weights to evaluate with, if an algorithm keeps its own."""
        for algorithm in self._at("evaluation_weights"):
            if (weights := algorithm.evaluation_weights()) is not None:
                return weights
        return None

    def state_dict(self) -> dict[str, Any]:
        return {name: algorithm.state_dict() for name, algorithm in self._active.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, algorithm in self._active.items():
            algorithm.load_state_dict(state[name])


def one_after_the_other(changes: Sequence[Change], batch: Batch) -> Batch:
    for change in changes:
        batch = change(batch)
    return batch


def _normalized(normalize: Callable[[Tensor], Tensor], batch: Batch) -> Batch:
    return replace(batch, images=normalize(batch.images))


def _applied(apply: Callable[[Batch, Sequence[Tensor]], Batch], drawn: list[Tensor], batch: Batch) -> Batch:
    return apply(batch, drawn)


def _change_image(
    algorithms: list[Algorithm[AlgorithmConfig]], image: np.ndarray, index: int, epoch: int
) -> np.ndarray:
    for algorithm in algorithms:
        image = algorithm.change_image(image, index, epoch)
    return image
