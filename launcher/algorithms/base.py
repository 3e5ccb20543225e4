"""The points of the training loop at which an algorithm can act; each algorithm is one file in this folder."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self

import numpy as np

from launcher.config.declaration import POINTS, AlgorithmConfig, Size
from launcher.config.fields import is_on
from launcher.data.batch import Batch, Moment
from launcher.errors import UserError
from launcher.plugins import Complete

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from launcher.plan.plan import Plan

# Computes the mean loss of logits [B, classes] and targets.
Loss = Callable[["Tensor", "Tensor"], "Tensor"]


class Gradients(Protocol):
    """Computes gradients of a batch into `.grad` and returns the detached mean loss.

    `synchronize=False` does not average them over ranks; `update_statistics=False` does not update batch-norm
    statistics.
    """

    def __call__(self, batch: Batch, *, synchronize: bool = True, update_statistics: bool = True) -> Tensor: ...


@dataclass(frozen=True)
class Transform:
    """A change of one batch: `apply(batch, *tensors)` returns the changed batch.

    arrays: arguments such as random draws; `apply` gets them as tensors on the device, in this order. The arrays of all
    transforms of a step are sent in one copy.
    """

    arrays: Sequence[np.ndarray]
    apply: Callable[..., Batch]


# A transform with its arrays on the device.
Sent = tuple[Transform, list["Tensor"]]


@dataclass(frozen=True)
class Teacher:
    """A trained network in evaluation mode; `size` and `mean`, `std` are those of its training images."""

    network: nn.Module
    size: Size
    mean: Sequence[float]
    std: Sequence[float]


@dataclass(frozen=True)
class Context:
    """The facts of a run for its algorithms: the plan (with the whole config) and the number of classes.

    `autocast` returns the context of a forward pass in the run's precision; `teacher` is that of the run, if any.
    `images` yields training images of all classes as loaded, [B, C, H, W] on the device; None without data.
    """

    plan: Plan
    classes: int
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext
    teacher: Teacher | None = None
    images: Callable[[int], Iterator[Tensor]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # note: for loader workers, which get the algorithms that act there
        return {**vars(self), "images": None}

    def fixed_shapes(self, device: torch.device) -> bool:
        """Return whether arrays must have the same shapes at every step, as on GPUs and in compiled code."""
        return device.type != "cpu" or is_on(self.plan.config.compile)


class Algorithm(Complete, AlgorithmConfig, ABC):
    """One algorithm: its values are the fields of a dataclass, and it acts at the points of the loop that it overrides.

    The class states its place at each of these points. A config has its values; `bound` gives what acts in a run, with
    the `context`. Steps that are captured repeat the operations of an earlier step for which `acts_at` is the same.
    Random numbers only come from `launcher.compute.randomness`, keyed by the batch's moment and sample indices.
    """

    context: Context

    # whether `before_step` changes which parameters learn
    changes_learning_parameters = False
    # whether some passes of `compute_gradients` do not update batch-norm statistics
    freezes_statistics = False
    # whether transforms depend on the step by their arrays and the image size alone, and use no network, so that
    # compiled code and graphs can repeat them
    repeats_changes = True
    # whether transforms run a network or code that may wait for other ranks; the look at training images skips them
    runs_others = False
    # whether it makes class weights of targets, on all ranks or at the same step only on some
    class_weights: Literal["none", "some", "all"] = "none"
    # part of a model without which `change_model` changes nothing, for the error `it has no ...`
    needs: ClassVar[str | None] = None

    def __init_subclass__(cls, **declared: Any) -> None:
        """Raise UserError if the class lacks the method of a point that it declares, or declares none for a method."""
        super().__init_subclass__(**declared)
        has = {point for point in POINTS if getattr(cls, point) is not getattr(Algorithm, point)}
        for point in POINTS if cls.places else ():
            if point in cls.places and point not in has:
                raise UserError(f"{cls.__name__} declares {point}, but has no such method; write it")
            if point in has and point not in cls.places:
                raise UserError(f"{cls.__name__} has {point}, but not its place there; add {point}=10 behind its base")

    def __class_getitem__(cls, values: Any) -> Any:
        """Raise UserError, as an algorithm has no second class of values, which earlier versions had."""
        name = values.__name__.removesuffix("Config")
        places = "".join(f", {point}={place}" for point, place in values.places.items())
        one = f"class {name}(Algorithm{places}), with its fields, used as self.NAME"
        raise UserError(f"{values.__name__} and {name} are one class now: write {one}")

    def bound(self, context: Context) -> Self:
        """Return what acts in a run: a copy of the values, with state of its own."""
        one = copy(self)
        vars(one)["context"] = context
        one.set_up()
        return one

    def set_up(self) -> None:
        """Act once the `context` is known, before any of the points."""

    def change_model(self, model: nn.Module) -> None:
        """Change the model in place before the optimizer is built; keep parameter names if possible."""

    def change_loss(self, loss: Loss) -> Loss:
        """Return the loss to train on, for targets as `change_batch` makes them."""
        return loss

    def bind(self, model: nn.Module, loss: Loss) -> None:
        """Receive the run's network, and the loss of the task without `change_loss`, before the first step."""

    def change_order(self, order: np.ndarray, moment: Moment) -> np.ndarray:
        """Change the sample indices [N] of an epoch, equal on all ranks; modulo N each is the image.

        moment: of the epoch's first step, on rank 0.
        """
        return order

    def change_image(self, image: np.ndarray, index: int, moment: Moment) -> np.ndarray:
        """Change one uint8 image [H, W, 3], of a sample, in a loader's worker; the algorithm must be picklable."""
        return image

    def before_step(self, model: nn.Module, moment: Moment) -> None:
        """Act before the step `moment.step`, such as change which parameters learn (`changes_learning_parameters`)."""

    def change_batch(self, batch: Batch, size: Size) -> Transform | None:
        """Return the change of a batch, whose images then have this size; None for no change.

        batch: of as many samples as it then has; its values are those before any change.
        """
        return None

    def compute_gradients(self, batch: Batch, model: nn.Module, gradients: Gradients) -> Tensor:
        """Compute the gradients of a step; return the batch's detached mean loss, non-finite if that of any pass is.

        Gradients that are not finite on one rank must be so on all ranks.
        """
        return gradients(batch)

    def change_gradients(self, model: nn.Module, moment: Moment) -> None:
        """Change the parameters' `.grad` in place."""

    def after_step(self, model: nn.Module, moment: Moment) -> None:
        """Act after the optimizer's step `moment.step`, if it was not dropped and `acts_at` is not 0."""

    def evaluation_weights(self) -> dict[str, Tensor] | None:
        """Return the state dict to evaluate and export, or None for the model's."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the state between steps for checkpoints: only tensors, numbers and strings."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a result of `state_dict`."""
