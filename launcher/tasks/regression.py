"""Numbers of an image: the network learns them with the mean 0 and the standard deviation 1 of the training images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from launcher import atomic
from launcher.config.choices import Huber
from launcher.config.schema import RunConfig
from launcher.tasks import Details, Row
from launcher.tasks.images import ImageTask

_LOSSES: dict[str, Callable[..., Tensor]] = {"mse": F.mse_loss, "l1": F.l1_loss, "huber": F.huber_loss}
_MOST_DRAWN = 9


class Regression(ImageTask):
    """Targets are normalized numbers, float32 [B, K]; a number in the user's unit is that times `scale` plus `shift`.

    shift, scale: mean and standard deviation of each number of the training images.
    """

    def __init__(
        self,
        config: RunConfig,
        dtype: torch.dtype | None = None,
        shift: Sequence[float] = (0.0,),
        scale: Sequence[float] = (1.0,),
    ):
        super().__init__(config, dtype)
        loss = config.loss
        self._loss = partial(_LOSSES[loss.name], **({"delta": loss.delta} if isinstance(loss, Huber) else {}))
        self._unit = torch.tensor([[*shift], [*scale]], dtype=torch.float64)

    def targets(self, labels: Tensor) -> Tensor:
        # note: in float64, since a mean may be much larger than the deviation
        unit = self._unit_on(labels)
        return ((labels.double() - unit[0]) / unit[1]).float()

    def loss(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        return self._loss(outputs.float(), targets)

    def metrics(self, outputs: Tensor, targets: Tensor) -> Sequence[Tensor]:
        """Return sums by number, each float64 [K]: absolute errors in its unit, squared errors, targets, their squares.

        All but the first are normalized: R2 is the same, and targets have no large mean that would cost digits.
        """
        errors, targets = outputs.double() - targets.double(), targets.double()
        absolute = errors.abs() * self._unit_on(outputs)[1]
        return [value.sum(0) for value in (absolute, errors.square(), targets, targets.square())]

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
        sums = zip(*(values.tolist() for values in self._task.metrics(outputs, targets)), strict=True)
        errors = self._task.in_unit(outputs) - self._task.in_unit(targets)
        rows: list[Row] = []
        for name, parts, of_name in zip(self._names, sums, errors.T, strict=True):
            mae, r2 = self._task.values.means(parts, len(errors))
            rows.append(
                {
                    "name": name,
                    "mae": mae,
                    "rmse": of_name.square().mean().sqrt().item(),
                    "r2": r2 if len(errors) > 1 else None,
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
            # note: the temporary name has another suffix
            figure.savefig(temporary, format="png")
        return [*super().write(folder, title), drawing]


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
