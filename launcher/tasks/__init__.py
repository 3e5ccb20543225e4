"""Tasks, one file each with its values and code: targets, loss and metrics of a network as functions of tensors."""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, Self

from launcher.config.declaration import Size
from launcher.config.tasks import TaskConfig
from launcher.errors import UserError
from launcher.files import atomic
from launcher.later import torch
from launcher.plugins import Complete
from launcher.tasks.presenters import ImagePresenter, Presenter

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor, nn

    from launcher.config.schema import RunConfig
    from launcher.data.batch import Batch
    from launcher.data.loading import EvaluationLoader


# The values of a class or number by their names, None where they are undefined.
Row = dict[str, str | float | None]


class Details(Complete, ABC):
    """What an evaluation by one rank shows besides the metrics, by class or number.

    key: the name of the table's file, and of its values in JSON. heading: that of its text, whose columns 1 to 3 have
    numbers.
    """

    key: ClassVar[str]
    heading: ClassVar[Sequence[str]]

    @abstractmethod
    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch, in the order of the images."""

    @abstractmethod
    def rows(self) -> list[Row]:
        """Return the table."""

    @abstractmethod
    def texts(self, row: Row) -> list[str]:
        """Return a row's texts below the heading."""

    def values(self) -> dict[str, object]:
        """Return the values for JSON."""
        return {self.key: self.rows()}

    def write(self, folder: Path, title: str) -> list[Path]:
        """Write the table in CSV, and a drawing if there is one, into a folder, atomically; return the files."""
        # note: it imports rich, which a verb that prints no table does not need
        from launcher.console import csv_cell

        table, rows = folder / f"{self.key}.csv", self.rows()
        with atomic.writing(table) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows({key: csv_cell(v) if isinstance(v, str) else v for key, v in row.items()} for row in rows)
        return [table]

    def calibration_error(self) -> float | None:
        """Return the expected calibration error of the predicted class; None if predictions are no such class."""
        return None

    def accuracy_by_level(self) -> list[float]:
        """Return the accuracy of the parents of the classes, the top level first; empty without nested classes."""
        return []

    def sections(self, loader: EvaluationLoader) -> str:
        """Return the markup of some of the images, with pixels from the loader; empty without any."""
        return ""


class Task(TaskConfig, ABC):
    """A task: its values are the fields of a dataclass, and it has the functions for training and evaluation.

    A config has its values; `bound` gives the task of a run, with its `config`. No function reads a value from the
    device.
    outputs: those of the network, of any floating-point type [B, ...]. targets: made from a loader's labels;
    after algorithms that mix them they are class weights, float32 [B, C].
    gathers: an evaluation joins the states of all samples instead of adding them.
    """

    gathers: ClassVar[bool] = False
    presenter: ClassVar[type[Presenter]] = ImagePresenter

    def bound(self, config: RunConfig, dtype: torch.dtype | None = None, **facts: Any) -> Self:
        """Return the task of a run: a copy of the values, with state of its own.

        dtype: that of prepared inputs, float32 without one. facts: those that are known.
        """
        one = copy(self)
        one._enter(config, dtype or torch.float32)
        one.set_up(**facts)
        return one

    def _enter(self, config: RunConfig, dtype: torch.dtype) -> None:
        self.config, self.dtype, self._loss = config, dtype, config.loss.function(self)

    def set_up(self) -> None:
        """Act once the `config` is known; its keywords are the `facts`."""

    @abstractmethod
    def targets(self, labels: Tensor) -> Tensor:
        """Return the targets of images with these labels, classes int64 [B] or rows [B, K] (`data.classes`)."""

    def loss(self, outputs: Tensor, targets: Tensor, **of_classes: Tensor) -> Tensor:
        """Return the mean loss [], in float32.

        of_classes: `LossConfig.of_classes`, float32 [C], in training; only if it has `weighs_classes`.
        """
        return self._loss(outputs.float(), targets, **of_classes)

    @abstractmethod
    def states(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return the sums over the samples of a batch from which its metrics follow, of any shape, by name.

        If the task `gathers`, return rows of the samples [B, ...].
        """

    def evaluated(self, states: Mapping[str, Tensor], samples: int) -> dict[str, float]:
        """Return the declared metrics from the states of all batches and ranks, on the CPU, sums in float64.

        Here they are the means over samples of the states with their names.
        """
        return {metric.name: states[metric.name].item() / samples for metric in self.metrics}

    def prepare(self, batch: Batch) -> Batch:
        """Return a batch as the network needs it, from one as loaded, on the device; the same here."""
        return batch

    @abstractmethod
    def blank(self, count: int, size: Size, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return inputs and labels of `count` samples as loaded, of a size, to rehearse steps with."""

    def output_shape(self, count: int, size: Size) -> tuple[int, ...]:
        """Return the shape of the outputs for `count` inputs of a size."""
        return count, self.outputs(self.config.dataset)

    def forward(self, model: nn.Module, inputs: Tensor) -> Tensor:
        """Return the outputs of an evaluation, float32, for prepared inputs; the model is in evaluation mode."""
        return self.average([model(one).float() for one in self.passes(inputs)])

    def passes(self, inputs: Tensor) -> list[Tensor]:
        """Return the inputs of equal shape of each forward pass of an evaluation."""
        return [inputs]

    def average(self, outputs: list[Tensor]) -> Tensor:
        """Return the outputs of an evaluation from those of its passes."""
        return outputs[0]

    def card_input(self) -> dict[str, Any]:
        """Return how an evaluation prepares inputs, as the `input` of a model card."""
        return {}

    @abstractmethod
    def details(self, names: Sequence[str], *, with_images: bool) -> Details:
        """Return what collects the details of an evaluation, with or without images to show."""

    def in_unit(self, values: Tensor) -> Tensor:
        """Return outputs in the unit of the training data, as predictions and exported programs have them."""
        return values

    def raw(self, predicted: Tensor) -> Tensor:
        """Return the network's outputs from those `in_unit`."""
        return predicted

    def labels(self, targets: Tensor, names: Sequence[str]) -> list[str]:
        """Return the label of each target as the data set writes it; those of pixels are empty."""
        separator = self.config.dataset.columns.separator
        match self.labelled:
            case "class":
                return [names[number] for number in targets.tolist()]
            case "classes":
                rows = targets.tolist()
                return [separator.join(n for n, one in zip(names, row, strict=True) if one) for row in rows]
            case "numbers":
                numbers = self.predictions(targets, names, len(names))
                return [separator.join(f"{value:.9g}" for _, value in row) for row in numbers]
        return [""] * len(targets)

    @abstractmethod
    def predictions(self, outputs: Tensor, names: Sequence[str], top: int) -> list[list[tuple[str, float]]]:
        """Return the names that are predicted for each image with their probabilities, or numbers; likeliest first.

        top: the most classes, where the task itself does not decide how many.
        """


def build_task(config: RunConfig, dtype: torch.dtype | None = None, facts: Mapping[str, Any] | None = None) -> Task:
    """Build the config's task.

    dtype: of prepared inputs. facts: those of `of_training` and `of_evaluation`, if they are known.

    Raises UserError if its class has values alone.
    """
    if not isinstance(config.task, Task):
        raise UserError(f"{type(config.task).__name__} has no functions of tensors; write its class on Task")
    return config.task.bound(config, dtype, **facts or {})
