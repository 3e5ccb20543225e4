"""The user's metrics of an evaluation: functions of outputs and targets, and those of torchmetrics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from launcher.compute.accelerator import widest
from launcher.config.declaration import Size
from launcher.config.targets import reason
from launcher.errors import Problem, UserError

if TYPE_CHECKING:
    from launcher.tasks import Task


class OwnMetrics:
    """Adds batches of this rank: sums of values of samples, or the states of torchmetrics, which reduces them itself.

    errors: by name, why a metric is NaN in this evaluation.
    """

    def __init__(self, task: Task, device: torch.device):
        """Build them; raises UserError if one cannot be built."""
        self.errors: dict[str, str] = {}
        self._values = task.config.metrics
        self._sums = widest(device)
        self._metrics = {name: _on(values.built(), device) for name, values in self._values.items()}

    def sums(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Add a batch; return the sum over its samples [] of each function, by `_key`."""
        sums: dict[str, Tensor] = {}
        for name, metric in self._metrics.items():
            is_function, value = not _is_of_torchmetrics(metric), outputs.new_full((), math.nan)
            try:
                if is_function:
                    value = _of_samples(metric(outputs, targets), len(outputs)).to(self._sums).sum()
                else:
                    metric.update(outputs, targets)
            # note: the user's code may raise anything
            except Exception as error:
                self.errors[name] = reason(error)
            sums |= {_key(name): value} if is_function else {}
        return sums

    def results(self, sums: Mapping[str, Tensor], samples: int, errors: Mapping[str, str]) -> dict[str, float]:
        """Return the metrics over all ranks, which call this together; `errors` are those of all of them."""
        self.errors |= errors
        results = dict.fromkeys(self._metrics, math.nan)
        for name, metric in self._metrics.items():
            if name not in self.errors:
                results[name] = self._result(name, metric, sums, samples)
        return results

    def _result(self, name: str, metric: Any, sums: Mapping[str, Tensor], samples: int) -> float:
        if not _is_of_torchmetrics(metric):
            return sums[_key(name)].item() / samples
        try:
            return float(_number(metric.compute()))
        except Exception as error:
            self.errors[name] = reason(error)
            return math.nan

    def warn(self) -> None:
        """Print the errors on rank 0."""
        for name, error in self.errors.items() if not (dist.is_initialized() and dist.get_rank()) else ():
            metric = f"metrics.{name}={self._values[name].target}"
            print(f"warning: {metric} is NaN, since it fails: {error}", flush=True)


def check_metrics(task: Task, size: Size, device: torch.device) -> None:
    """Check the user's metrics on outputs of zeros; all ranks call this together.

    Raises UserError with what is wrong.
    """
    if not task.config.metrics:
        return
    _, labels = task.blank(2, size, device)
    metrics, outputs = OwnMetrics(task, device), torch.zeros(task.output_shape(2, size), device=device)
    metrics.results(metrics.sums(outputs, task.targets(labels)), len(outputs), {})
    if metrics.errors:
        targets = {name: values.target for name, values in task.config.metrics.items()}
        raise UserError(
            *(Problem(f"fails: {error}", f"metrics.{name}", targets[name]) for name, error in metrics.errors.items())
        )


def _key(name: str) -> str:
    """Return the name of a function's sum, which no state of a task has."""
    return f"metrics.{name}"


def _is_of_torchmetrics(metric: Any) -> bool:
    return hasattr(metric, "update") and hasattr(metric, "compute")


def _on(metric: Any, device: torch.device) -> Any:
    return metric.to(device) if _is_of_torchmetrics(metric) else metric


def _of_samples(value: Any, count: int) -> Tensor:
    if not isinstance(value, Tensor) or value.shape != (count,):
        returned = f"shape {[*value.shape]}" if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"it returns {returned}, but must return one value a sample, [{count}]")
    return value


def _number(value: Any) -> Any:
    if not isinstance(value, Tensor) or value.numel() != 1:
        returned = f"shape {[*value.shape]}" if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"it returns {returned}, but must return one number; set average=macro")
    return value
