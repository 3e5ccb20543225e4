"""Image regression: the network learns numbers scaled to mean 0 and standard deviation 1 of the training images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from pydantic.dataclasses import dataclass

from launcher.config.fields import STRICT
from launcher.config.goals import Metric
from launcher.counts import count_of
from launcher.data import class_names
from launcher.errors import Problem, UserError
from launcher.files import atomic
from launcher.files.outputs import image_options
from launcher.later import torch
from launcher.tasks import Details, Row
from launcher.tasks.images import ImageTask

if TYPE_CHECKING:
    from torch import Tensor

    from launcher.config.schema import Columns

_MOST_DRAWN = 9


@dataclass(config=STRICT)
class Regression(ImageTask):
    """Targets are normalized numbers, float32 [B, K]; a number in the user's unit is that times `scale` plus `shift`.

    shift, scale: mean and standard deviation of each number of the training images.

    One or several numbers of each image; the network learns them with mean 0 and standard deviation 1.

    MAE is the mean absolute error, R2 the coefficient of determination as scikit-learn's; both are means over numbers.
    R2 of a number that never changes is 1 without an error, else 0.
    """

    metrics = (
        Metric("mae", "MAE", better="lower", is_share=False, about="mean absolute error, in the unit of the numbers"),
        Metric("r2", "R2", is_share=False, about="coefficient of determination"),
    )
    labelled = "numbers"
    predicted = ("name", "value")
    facts = ("shift", "scale")
    lacking = MappingProxyType({"mps": "float64"})

    name: Literal["regression"]

    def read_labels(self, texts: Sequence[str], columns: Columns) -> tuple[list[str], list[Any]]:
        key, name = "dataset.columns.label", columns.label
        rows = []
        for text in texts:
            try:
                rows.append([class_names.number(part) for part in text.split(columns.separator)])
            except ValueError:
                message = f"has {text!r}, which is no number; set a column of numbers, or a list of such columns"
                raise UserError(Problem(message, key, name)) from None
            width = len(name) if isinstance(name, list) else len(rows[0])
            if len(rows[-1]) != width:
                message = f"has {text!r}, but needs {count_of(width, 'finite number')}; add them, or remove the row"
                raise UserError(Problem(message, key, name))
        if isinstance(name, list):
            return name, rows
        name = name or "value"
        return [name] if len(rows[0]) == 1 else [f"{name} {number}" for number in range(len(rows[0]))], rows

    def of_training(self, labels: Any) -> dict[str, Any]:
        mean, std = labels.mean(0, dtype="float64"), labels.std(0, dtype="float64")
        # note: a number that never changes has no scale
        return {"shift": mean.tolist(), "scale": [value or 1.0 for value in std.tolist()]}

    def set_up(self, shift: Sequence[float] = (0.0,), scale: Sequence[float] = (1.0,)) -> None:
        self._unit = torch.tensor([[*shift], [*scale]], dtype=torch.float64)

    def targets(self, labels: Tensor) -> Tensor:
        # note: in float64, since a mean may be much larger than the deviation
        unit = self._unit_on(labels)
        return ((labels.double() - unit[0]) / unit[1]).float()

    def states(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return sums by number, each float64 [K]; `absolute` is in its unit.

        The others are normalized: R2 is the same, and targets have no large mean that would cost digits.
        """
        errors, targets = outputs.double() - targets.double(), targets.double()
        absolute = errors.abs() * self._unit_on(outputs)[1]
        parts = {"absolute": absolute, "squared": errors.square(), "targets": targets, "squares": targets.square()}
        return {name: value.sum(0) for name, value in parts.items()}

    def evaluated(self, states: Mapping[str, Tensor], samples: int) -> dict[str, float]:
        absolute, squared, total, squares = (
            states[name].tolist() for name in ("absolute", "squared", "targets", "squares")
        )
        around = [square - one**2 / samples for one, square in zip(total, squares, strict=True)]
        # note: less than a trillionth is rounding, since the targets are float32
        r2 = [
            1 - error / of if of > 1e-12 * square else float(error == 0)
            for error, of, square in zip(squared, around, squares, strict=True)
        ]
        mae = sum(absolute) / len(absolute) / samples
        return {"mae": mae, "r2": sum(r2) / len(r2) if samples > 1 else math.nan}

    def details(self, names: Sequence[str], *, with_images: bool) -> Scatter:
        return Scatter(self, names)

    def predictions(self, outputs: Tensor, names: Sequence[str], top: int) -> list[list[tuple[str, float]]]:
        """Return all numbers in their unit."""
        return [[*zip(names, row, strict=True)] for row in self.in_unit(outputs).tolist()]

    def in_unit(self, values: Tensor) -> Tensor:
        """Convert normalized numbers [B, K] to their unit, float64."""
        unit = self._unit_on(values)
        return values.double() * unit[1] + unit[0]

    def raw(self, predicted: Tensor) -> Tensor:
        return self.targets(predicted)

    def _unit_on(self, values: Tensor) -> Tensor:
        """Return shift and scale, float64 [2, K], on the device of the values."""
        if self._unit.device != values.device:
            self._unit = self._unit.to(values.device)
        return self._unit


class Scatter(Details):
    """Errors of each number, and a plot of predictions over true numbers."""

    key = "by_number"
    heading = ("number", "MAE", "RMSE", "R2", "mean error")

    def __init__(self, task: Regression, names: Sequence[str]):
        self._task, self._names = task, names
        self._batches: list[tuple[Tensor, Tensor]] = []

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        self._batches.append((outputs, targets))

    def _all(self) -> tuple[Tensor, Tensor]:
        """Return outputs and targets [N, K] on the CPU."""
        outputs, targets = (torch.cat(parts).cpu() for parts in zip(*self._batches, strict=True))
        return outputs, targets

    def rows(self) -> list[Row]:
        """Return the errors of each number; None where they are undefined."""
        outputs, targets = self._all()
        states, count = self._task.states(outputs, targets), len(outputs)
        errors = self._task.in_unit(outputs) - self._task.in_unit(targets)
        rows: list[Row] = []
        for number, (name, of_name) in enumerate(zip(self._names, errors.T, strict=True)):
            own = self._task.evaluated({key: values[number : number + 1] for key, values in states.items()}, count)
            rows.append(
                {
                    "name": name,
                    "mae": own["mae"],
                    "rmse": of_name.square().mean().sqrt().item(),
                    "r2": own["r2"] if count > 1 else None,
                    "mean_error": of_name.mean().item(),
                }
            )
        return rows

    def texts(self, row: Row) -> list[str]:
        return [value if isinstance(value, str) else _shown(value) for value in row.values()]

    def write(self, folder: Path, title: str) -> list[Path]:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        drawing = folder / "scatter.png"
        names = self._names[:_MOST_DRAWN]
        figure = Figure(figsize=(4 * min(3, len(names)), 4 * -(-len(names) // 3)), dpi=110, layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(title, x=0.01, ha="left", weight="bold", fontsize=9)
        predicted, true = map(self._task.in_unit, self._all())
        for place, name in enumerate(names):
            values, targets = predicted[:, place], true[:, place]
            axes = figure.add_subplot(-(-len(names) // 3), min(3, len(names)), place + 1)
            axes.scatter(targets, values, s=6, alpha=0.4, linewidths=0)
            axes.axline((targets.mean().item(),) * 2, slope=1, color="grey", linewidth=1)
            axes.set_xlabel(f"{name}, true", parse_math=False)
            axes.set_ylabel("predicted")
        with atomic.writing(drawing) as temporary:
            figure.savefig(temporary, **image_options())
        return [*super().write(folder, title), drawing]


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
