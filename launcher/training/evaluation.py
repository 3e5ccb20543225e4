"""Compute metrics and loss of a model on samples, over all ranks together."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from launcher.compute.accelerator import widest
from launcher.data.batch import START, Batch, Loaded
from launcher.errors import UserError
from launcher.rank.group import gather
from launcher.rank.signs import HEARTBEAT
from launcher.tasks import Task
from launcher.training.own_metrics import OwnMetrics


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
    observers: Sequence[Callable[[Tensor, Tensor], None]] = (),
) -> Evaluation | None:
    """Evaluate on this rank's samples and sum over ranks; return None if any rank requested a stop.

    loader: batches of inputs, labels and sample indices; ranks may have different numbers of batches, and every sample
    is on exactly one rank. autocast: the context of a forward pass in the run's precision.
    observers: receive the outputs and targets of each batch on the device.

    Raises UserError if no rank has samples.
    """
    totals, was_training = Totals(task, device), model.training
    # note: tuning takes longer than the few batches of an evaluation gain
    torch.backends.cudnn.benchmark = False
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
            for observe in observers:
                observe(outputs, batch.targets)
    finally:
        model.train(was_training)
    return totals.over_ranks(interrupted=interrupted)


def outside_steps(inputs: Tensor, targets: Tensor | None = None) -> Batch:
    """Return a batch that belongs to no step of a run, for a task to prepare."""
    targets = inputs.new_zeros(len(inputs)) if targets is None else targets
    return Batch(inputs, targets, np.arange(len(inputs)), START)


class Totals:
    """The states of a task's metrics, and the loss, over the batches of this rank."""

    def __init__(self, task: Task, device: torch.device):
        self._task, self._samples = task, 0
        # note: sums stay on the device to avoid synchronization; float64 counts exactly up to 2^53
        self._sums = torch.zeros(0, dtype=widest(device), device=device)
        self._shapes: dict[str, torch.Size] = {}
        self._rows: list[dict[str, Tensor]] = []
        self._own = OwnMetrics(task, device)

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch: outputs float32 [B, ...], and the task's targets."""
        task, count = self._task, len(outputs)
        states = task.states(outputs, targets)
        if task.gathers:
            self._rows.append(states)
            states = {}
        states |= self._own.sums(outputs, targets)
        values = (*states.values(), task.loss(outputs, targets) * count)
        batch = torch.cat([value.to(self._sums.dtype).view(-1) for value in values])
        self._sums = self._sums + batch if len(self._sums) else batch
        self._shapes = {name: value.shape for name, value in states.items()}
        self._samples += count

    def over_ranks(self, *, interrupted: bool = False) -> Evaluation | None:
        """Return the results over all ranks; None if any is interrupted. Raises UserError if no rank has samples."""
        of_ranks = gather((interrupted, self._sums.tolist(), self._shapes, self._samples, self._own.errors))
        stopped, sums, shapes, counts, errors = zip(*of_ranks, strict=True)
        if any(stopped):
            return None
        if not (samples := sum(counts)):
            raise UserError("the validation set is empty; add samples, or check dataset.path")
        # note: a rank without samples does not know the sums
        *totals, loss = (sum(column) for column in zip(*filter(None, sums), strict=True))
        states = named = _named(totals, next(filter(None, shapes), {}))
        if self._task.gathers:
            states = _joined(self._rows)
        metrics = self._task.evaluated(states, samples)
        metrics |= self._own.results(named, samples, {name: text for one in errors for name, text in one.items()})
        self._own.warn()
        return Evaluation({one.name: metrics[one.name] for one in self._task.metrics}, loss / samples, samples)


def _joined(batches: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the rows of the batches of all ranks, on the CPU."""
    here = [{name: rows.cpu() for name, rows in batch.items()} for batch in batches]
    every = [batch for of_rank in gather(here) for batch in of_rank]
    return {name: torch.cat([batch[name] for batch in every]) for name in every[0]}


def _named(totals: Sequence[float], shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Return sums by their names, in their shapes."""
    parts = torch.tensor(totals, dtype=torch.float64).split([shape.numel() for shape in shapes.values()])
    return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
