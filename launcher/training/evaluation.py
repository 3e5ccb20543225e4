"""Compute metrics and loss of a model on samples, over all ranks together."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from launcher.data.batch import Batch, Loaded, Moment
from launcher.errors import UserError
from launcher.rank.group import gather
from launcher.rank.signs import HEARTBEAT
from launcher.tasks import Task


@dataclass(frozen=True)
class Evaluation:
    """Results over all ranks: the task's metrics by name, the primary one first, and the mean loss."""

    metrics: dict[str, float]
    loss: float
    samples: int


@torch.inference_mode()
def evaluate(
    model: nn.Module,
    task: Task,
    loader: Iterable[Loaded],
    autocast: Callable[[], AbstractContextManager[object]],
    device: torch.device,
    should_stop: Callable[[], bool] = lambda: False,
    observe: Callable[[Tensor, Tensor], None] = lambda outputs, targets: None,
) -> Evaluation | None:
    """Evaluate on this rank's samples and sum over ranks; return None if any rank requested a stop.

    loader: batches of inputs, labels and sample indices; ranks may have different numbers of batches, and every sample
    is on exactly one rank. autocast: the context of a forward pass in the run's precision.
    observe: receives the outputs and targets of each batch on the device.

    Raises UserError if no rank has samples.
    """
    totals, was_training = Totals(task, device), model.training
    model.eval()
    interrupted = False
    try:
        for inputs, labels, _ in loader:
            HEARTBEAT.beat()
            interrupted = should_stop()
            if interrupted:
                break
            inputs, labels = (tensor.to(device, non_blocking=True) for tensor in (inputs, labels))
            batch = task.prepare(outside_steps(inputs, task.targets(labels)))
            with autocast():
                outputs = task.forward(model, batch.inputs)
            totals.add(outputs, batch.targets)
            observe(outputs, batch.targets)
    finally:
        model.train(was_training)
    return totals.over_ranks(interrupted=interrupted)


def outside_steps(inputs: Tensor, targets: Tensor | None = None) -> Batch:
    """Return a batch that belongs to no step of a run, for a task to prepare."""
    targets = inputs.new_zeros(len(inputs)) if targets is None else targets
    return Batch(inputs, targets, np.arange(len(inputs)), Moment(0, 0, 0, 1))


class Totals:
    """Sums of a task's metrics and loss over the batches of this rank, or all outputs if the metrics are no sums."""

    def __init__(self, task: Task, device: torch.device):
        self._task, self._samples = task, 0
        # note: sums stay on the device to avoid synchronization; float64 counts exactly up to 2^53
        self._sums = torch.zeros(0, dtype=torch.float64, device=device)
        self._rows: list[Tensor] = []

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch: outputs float32 [B, ...], and the task's targets."""
        task, count = self._task, len(outputs)
        values = (*task.metrics(outputs, targets), task.loss(outputs, targets) * count)
        batch = torch.cat([value.double().view(-1) for value in values])
        self._sums = self._sums + batch if len(self._sums) else batch
        self._samples += count
        if task.values.gathers:
            self._rows.append(torch.stack([outputs, targets], 1))

    def over_ranks(self, *, interrupted: bool = False) -> Evaluation | None:
        """Return the results over all ranks; None if any is interrupted. Raises UserError if no rank has samples."""
        stopped, sums, counts = zip(*gather((interrupted, self._sums.tolist(), self._samples)), strict=True)
        if any(stopped):
            return None
        if not (samples := sum(counts)):
            raise UserError("the validation set has no images; add some, or check dataset.path")
        # note: a rank without images does not know the number of sums
        *totals, loss = (sum(column) for column in zip(*filter(None, sums), strict=True))
        names = [metric.name for metric in self._task.values.metrics]
        if self._task.values.gathers:
            rows = [row for rows in gather([batch.cpu() for batch in self._rows]) for row in rows]
            outputs, targets = torch.cat(rows).unbind(1)
            metrics = self._task.metrics_of_all(outputs, targets)
        else:
            metrics = self._task.values.means(totals, samples)
        return Evaluation(dict(zip(names, metrics, strict=True)), loss / samples, samples)
