"""Tasks: what a network is trained for, as functions of tensors; `launcher.config.tasks` declares them without."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from launcher.config.tasks import TaskConfig

if TYPE_CHECKING:
    from torch import Tensor


class Task(Protocol):
    """What training and evaluation ask of a task; nothing here reads a value from the device.

    outputs: the network's, of any floating-point type [B, ...]. targets: what the task makes of a loader's numbers;
    algorithms may mix them, so that they are class weights, float32 [B, C].
    """

    values: TaskConfig

    def targets(self, numbers: Tensor) -> Tensor:
        """Targets of images whose class folders have these numbers, int64 [B]."""
        ...

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss [], in float32."""
        ...

    def metrics(self, outputs: Tensor, targets: Tensor) -> Sequence[Tensor]:
        """The sum over the samples [] of each metric, in the declaration's order."""
        ...

    def predictions(self, outputs: Tensor, names: Sequence[str], top: int) -> list[list[tuple[str, float]]]:
        """What to print of each image: at most `top` of the classes' names, with probabilities, the likeliest first."""
        ...


def build_task(config: TaskConfig, loss: str) -> Task:
    """Build the task that the config names: the class named as the config's, without `Config`, in the file `name`.

    loss: the name of the run's loss option.
    """
    kind: Any = getattr(import_module(f"{__name__}.{config.name}"), type(config).__name__.removesuffix("Config"))
    return kind(config, loss)  # type: ignore[no-any-return]
