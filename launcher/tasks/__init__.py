"""Tasks: targets, loss and metrics of a network as functions of tensors; `launcher.config.tasks` declares them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from launcher.config.tasks import TaskConfig

if TYPE_CHECKING:
    from torch import Tensor

    from launcher.config.schema import BCE, CrossEntropy


class Task(Protocol):
    """The functions of a task for training and evaluation; none of them reads a value from the device.

    outputs: those of the network, of any floating-point type [B, ...]. targets: made from a loader's labels;
    after algorithms that mix them they are class weights, float32 [B, C].
    """

    values: TaskConfig

    def targets(self, labels: Tensor) -> Tensor:
        """Return the targets of images with these labels, the numbers of their class folders, int64 [B]."""
        ...

    def loss(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the mean loss [], in float32.

        weights: of classes, float32 [C]; only if the declaration has `weighs_classes`.
        """
        ...

    def metrics(self, outputs: Tensor, targets: Tensor) -> Sequence[Tensor]:
        """Return the sum over samples [] of each metric, in the order of the declaration; or sums for its `means`."""
        ...

    def predictions(self, outputs: Tensor, names: Sequence[str], top: int) -> list[list[tuple[str, float]]]:
        """Return at most `top` class names of each image with their probabilities, likeliest first."""
        ...


def build_task(config: TaskConfig, loss: CrossEntropy | BCE) -> Task:
    """Build the config's task: the class with the name of the config's class, without `Config`, in the file `name`.

    loss: the values of the run's loss.
    """
    kind: Any = getattr(import_module(f"{__name__}.{config.name}"), type(config).__name__.removesuffix("Config"))
    return kind(config, loss)  # type: ignore[no-any-return]
