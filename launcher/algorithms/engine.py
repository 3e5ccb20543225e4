"""Call the active algorithms at each point of the loop, in the order of their places."""

import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
from torch import Tensor, nn

from launcher.algorithms.base import Algorithm, Context, Gradients, Loss, Sent, Transform
from launcher.config.declaration import POINTS, PREPARE, Size
from launcher.config.fields import is_on
from launcher.data.batch import Batch, Moment, packed, packed_size, unpacked


def build(context: Context) -> dict[str, Algorithm]:
    """Return the active algorithms by name, bound to the run."""
    active: dict[str, Any] = context.plan.config.algorithms
    return {name: algorithm.bound(context) for name, algorithm in active.items()}


@dataclass(frozen=True)
class _Drawn:
    """The transform of an algorithm, the size of the images after it, and whether it can be repeated."""

    name: str
    size: Size
    transform: Transform
    repeats: bool


@dataclass(frozen=True)
class Changes:
    """Transforms of a batch that follow each other, and their arrays as uint8 on the device.

    `kind` is the same for the same operations on arrays of the same shapes.
    """

    transforms: Sequence[Transform]
    packed: Tensor
    kind: Hashable

    def apply(self, batch: Batch, packed: Tensor | None = None) -> Batch:
        """Return the batch after the transforms, with their own arrays or other ones."""
        for transform, tensors in sent(self.transforms, self.packed if packed is None else packed):
            batch = transform.apply(batch, *tensors)
        return batch


class Engine:
    """Calls the active algorithms; has the same methods as one algorithm."""

    def __init__(self, context: Context):
        self.active = build(context)
        self.teacher = context.teacher
        self._plan, self._axes = context.plan, context.plan.config.task.axes
        self._acting = {point: context.plan.config.algorithms.acting(point) for point in POINTS}

    def _at(self, point: str) -> list[Algorithm]:
        return [self.active[name] for name in self._acting[point]]

    @property
    def can_repeat_changes(self) -> bool:
        """Return whether a graph can repeat changes of a batch on other arrays."""
        # note: code of the user may read the step, and compiled code has few launches
        return not is_on(self._plan.config.compile) and not self._plan.config.code

    @property
    def alike_on_ranks(self) -> bool:
        """Return whether the batches of all ranks have the same shapes and dtypes at every step."""
        kinds = {one.class_weights for one in self.active.values()}
        # note: code of the user may draw by the rank
        return not self._plan.config.code and ("all" in kinds or "some" not in kinds)

    @property
    def changing_parameters(self) -> list[str]:
        """Return the names of the algorithms that change which parameters learn."""
        return [name for name, algorithm in self.active.items() if algorithm.changes_learning_parameters]

    def change_model(self, model: nn.Module, initial: Mapping[str, Tensor] | None = None) -> None:
        """Change the network, then load `initial` weights, if any."""
        for algorithm in self._at("change_model"):
            algorithm.change_model(model)
        if initial is not None:
            model.load_state_dict(initial)

    def bind(self, model: nn.Module, loss: Loss) -> None:
        for algorithm in self.active.values():
            algorithm.bind(model, loss)

    def change_loss(self, loss: Loss) -> Loss:
        for algorithm in self._at("change_loss"):
            loss = algorithm.change_loss(loss)
        return loss

    def change_order(self, order: np.ndarray, moment: Moment) -> np.ndarray:
        """Return the sample indices [N] of an epoch."""
        for algorithm in self._at("change_order"):
            order = algorithm.change_order(order, moment)
        return order

    @property
    def change_image(self) -> Callable[[np.ndarray, int, Moment], np.ndarray] | None:
        """Return the change of (uint8 image [H, W, 3], sample index, moment) by loader workers, if any."""
        algorithms = self._at("change_image")
        return partial(_change_image, algorithms) if algorithms else None

    def before_step(self, model: nn.Module, moment: Moment) -> None:
        for algorithm in self._at("before_step"):
            algorithm.before_step(model, moment)

    def change_batch(
        self,
        batch: Batch,
        prepare: Callable[[Batch], Batch],
        apply: Callable[[Changes, Batch], Batch] = Changes.apply,
    ) -> Batch:
        """Augment, prepare and mix a batch; all arrays are sent to the device in one copy.

        apply: computes the changes that can be repeated.
        """
        drawn = [*self._drawn(batch, prepare)]
        together, start = packed([array for one in drawn for array in one.transform.arrays], batch.inputs.device), 0
        for repeats, group in itertools.groupby(drawn, key=attrgetter("repeats")):
            alike = [*group]
            arrays = [array for one in alike for array in one.transform.arrays]
            kind = *((one.name, one.size) for one in alike), *((array.shape, array.dtype.str) for array in arrays)
            end = start + packed_size(arrays)
            changes = Changes([one.transform for one in alike], together[start:end], kind)
            batch, start = apply(changes, batch) if repeats else changes.apply(batch), end
        return batch

    def _drawn(self, batch: Batch, prepare: Callable[[Batch], Batch]) -> Iterator[_Drawn]:
        """Yield the transforms of a loaded batch, in order."""
        step, size, samples = batch.moment.step, (*batch.inputs.shape[-self._axes :],), len(batch.inputs)
        for name in self._acting["change_batch"]:
            if name == PREPARE:
                yield _Drawn(name, size, Transform((), prepare), True)
                continue
            algorithm = self.active[name]
            transform = algorithm.change_batch(batch, size)
            size = algorithm.size_after(self._plan, step, size)
            if transform is not None:
                yield _Drawn(name, size, transform, algorithm.repeats_changes)
            if (left := algorithm.samples_after(self._plan, step, samples)) < samples:
                # note: only the device has the choice of samples, but later draws need their number
                batch, samples = replace(batch, inputs=batch.inputs[:left], targets=batch.targets[:left]), left

    def compute_gradients(self, batch: Batch, model: nn.Module, gradients: Gradients) -> Tensor:
        """Compute a step's gradients, by at most one algorithm."""
        for algorithm in self._at("compute_gradients"):
            return algorithm.compute_gradients(batch, model, gradients)
        return gradients(batch)

    def change_gradients(self, model: nn.Module, moment: Moment) -> None:
        for algorithm in self._at("change_gradients"):
            algorithm.change_gradients(model, moment)

    def acting_after(self, step: int) -> list[Algorithm]:
        """Return the algorithms that act after a step unless it is dropped."""
        acts_at = [(one, one.acts_at(self._plan, step)) for one in self._at("after_step")]
        return [one for one, acts in acts_at if acts is None or acts]

    def after_step(self, model: nn.Module, moment: Moment) -> None:
        """Act after a step that was not dropped."""
        for algorithm in self.acting_after(moment.step):
            algorithm.after_step(model, moment)

    def kind(self, step: int) -> Hashable:
        """Return what steps share that compute and change their gradients by the same algorithms."""
        names = self._acting["compute_gradients"] + self._acting["change_gradients"]
        return tuple(self.active[name].acts_at(self._plan, step) for name in names)

    def evaluation_weights(self) -> dict[str, Tensor] | None:
        """Return an algorithm's weights to evaluate, or None for the model's."""
        for algorithm in self._at("evaluation_weights"):
            if (weights := algorithm.evaluation_weights()) is not None:
                return weights
        return None

    def state_dict(self) -> dict[str, Any]:
        return {name: algorithm.state_dict() for name, algorithm in self.active.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, algorithm in self.active.items():
            algorithm.load_state_dict(state[name])


def sent(transforms: Sequence[Transform], packed: Tensor) -> list[Sent]:
    """Return transforms with their tensors, which are parts of `packed`."""
    tensors = iter(unpacked(packed, [array for one in transforms for array in one.arrays]))
    return [(one, list(itertools.islice(tensors, len(one.arrays)))) for one in transforms]


def _change_image(algorithms: list[Algorithm], image: np.ndarray, index: int, moment: Moment) -> np.ndarray:
    for algorithm in algorithms:
        image = algorithm.change_image(image, index, moment)
    return image
