"""Compute metrics and loss of a model on images, over all ranks together."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

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
    outputs_of: Callable[[Tensor], Tensor],
    loader: Iterable[tuple[Tensor, Tensor, Any]],
    task: Task,
    device: torch.device,
    should_stop: Callable[[], bool] = lambda: False,
    observe: Callable[[Tensor, Tensor], None] = lambda outputs, targets: None,
) -> Evaluation | None:
    """Evaluate on this rank's samples and sum over ranks; return None if any rank requested a stop.

    loader: batches of uint8 images [B, 3, H, W], labels for the task's targets, and sample indices; ranks may have
    different numbers of batches, and every sample is on exactly one rank.
    outputs_of: computes the outputs of the model, float32, for uint8 images on the device.
    observe: receives the outputs and targets of each batch on the device.

    Raises UserError if no rank has samples.
    """
    totals, was_training = Totals(task, device), model.training
    model.eval()
    interrupted = False
    try:
        for images, labels, _ in loader:
            HEARTBEAT.beat()
            interrupted = should_stop()
            if interrupted:
                break
            outputs = outputs_of(images.to(device, non_blocking=True))
            targets = task.targets(labels.to(device, non_blocking=True))
            totals.add(outputs, targets)
            observe(outputs, targets)
    finally:
        model.train(was_training)
    return totals.over_ranks(interrupted=interrupted)


def outputs_of(
    model: nn.Module, images: Tensor, autocast: Callable[[], AbstractContextManager[object]], *, flip_average: bool
) -> Tensor:
    """Return the outputs, float32, of a model in evaluation mode for its input, averaged with those of its mirror."""
    with autocast():
        outputs: Tensor = model(images).float()
        return (outputs + model(images.flip(3)).float()) / 2 if flip_average else outputs


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
