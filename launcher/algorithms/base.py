"""The points of the training loop at which an algorithm may act; each algorithm is one file beside this one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from launcher.config.declaration import AlgorithmConfig, Size
from launcher.data.batch import Batch, Moment
from launcher.models.build import Surgery
from launcher.plan.plan import Plan

ConfigT = TypeVar("ConfigT", bound=AlgorithmConfig, covariant=True)
# logits [B, classes] and targets to their mean loss
Loss = Callable[[Tensor, Tensor], Tensor]


class Gradients(Protocol):
    """Computes gradients of a batch into `.grad` and returns the detached mean loss.

    `synchronize=False` leaves them unaveraged over ranks; `update_statistics=False` leaves batch-norm statistics
    unmoved.
    """

    def __call__(self, batch: Batch, *, synchronize: bool = True, update_statistics: bool = True) -> Tensor: ...


@dataclass(frozen=True)
class Transform:
    """What happens to one batch: `apply(batch, *tensors)` returns the changed one.

    arrays: what it needs on the device, such as random draws; `apply` gets them as tensors there, in this order. The
    arrays of all transforms of a step go there in one copy.
    sets_model: it hands the arrays to the model instead, in no order with the others, and leaves the batch as it is.
    """

    arrays: Sequence[np.ndarray]
    apply: Callable[..., Batch]
    sets_model: bool = False


# A transform with its arrays on the device.
Sent = tuple[Transform, list[Tensor]]


@dataclass(frozen=True)
class Context:
    """What an algorithm may know of the run: the plan (with the whole config) and the number of classes.

    `autocast` makes the context of a forward pass in the run's precision.
    """

    plan: Plan
    classes: int
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext

    def fixed_shapes(self, device: torch.device) -> bool:
        """Whether arrays must have the same shapes at every step, which costs time where nothing is gained."""
        return device.type != "cpu" or self.plan.config.compile == "on"


class Algorithm(Generic[ConfigT]):
    """One algorithm, bound to points of the loop by overriding their methods; each does nothing here.

    `values` is the algorithm's declaration in `launcher.config.algorithms`, named as this class and `Config`.
    Randomness comes only from `launcher.randomness`, keyed by the batch's moment and sample indices.
    """

    # how an export makes the change again that evaluation sees; None: it sees none
    surgery: ClassVar[Surgery | None] = None
    # whether `before_step` changes which parameters learn
    changes_learning_parameters = False
    # whether `compute_gradients` leaves batch-norm statistics unmoved in some passes
    freezes_statistics = False
    # what `change_model` cannot do without in a model, if it is of no use without: `there is no ...`
    needs: ClassVar[str | None] = None

    def __init__(self, values: ConfigT, context: Context):
        self.values = values
        self.context = context

    def change_model(self, model: nn.Module) -> None:
        """Change the model in place before the optimizer is built; parameter names stay torchvision's if they can."""

    def surgery_values(self) -> dict[str, Any] | None:
        """Keyword arguments of `surgery.change`; None: at evaluation the plain network computes the same."""
        return dict(vars(self.values))

    def change_order(self, order: np.ndarray) -> np.ndarray:
        """Change the sample indices [N] that an epoch reads; the length stays, index modulo N is the image."""
        return order

    def change_image(self, image: np.ndarray, index: int, epoch: int) -> np.ndarray:
        """Change one uint8 image [H, W, 3] in a loader's worker; must pickle."""
        return image

    def before_step(self, model: nn.Module, moment: Moment) -> None:
        """Change which parameters learn in the step numbered `moment.step`."""

    def change_batch(self, batch: Batch, size: Size) -> Transform | None:
        """What happens to a batch, whose images have this size when their turn comes; None: nothing."""
        return None

    def compute_gradients(self, batch: Batch, model: nn.Module, gradients: Gradients) -> Tensor:
        """Compute the gradients of a step; returns the detached mean loss of the batch, not finite if a pass's was not.

        Gradients that are not finite must be so on all ranks.
        """
        return gradients(batch)

    def change_gradients(self, model: nn.Module) -> None:
        """Change the parameters' `.grad` in place."""

    def after_step(self, model: nn.Module, moment: Moment, applied: Tensor) -> None:
        """Act after the optimizer's step numbered `moment.step`.

        applied: boolean [] on the device; where it is false the step was left out, and nothing may change.
        """

    def evaluation_weights(self) -> dict[str, Tensor] | None:
        """The state dict to evaluate and export with, or None for the model's own."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Everything kept between steps: tensors, numbers and strings only; saved in every checkpoint."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""


class ChoosingAlgorithm(Algorithm[ConfigT]):
    """An algorithm that leaves samples out when the batch is changed, and says in `chosen` which it keeps.

    The choice is known on the device alone: later ones draw for all `indices`, and take of it what is `chosen`.
    """

    @abstractmethod
    def choose(self, batch: Batch, model: nn.Module, loss: Loss) -> Batch:
        """The samples of a batch that the step is to learn from."""
