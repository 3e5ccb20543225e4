"""Compute metrics and loss of a model on images, over all ranks together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from launcher.errors import UserError
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
    loader: Iterable[tuple[Tensor, Tensor, Any]],
    prepare: Callable[[Tensor], Tensor],
    task: Task,
    device: torch.device,
    autocast: Callable[[], AbstractContextManager[object]],
    *,
    flip_average: bool,
    should_stop: Callable[[], bool],
    observe: Callable[[Tensor, Tensor], None] = lambda outputs, targets: None,
) -> Evaluation | None:
    """Evaluate on this rank's samples and sum over ranks; return None if any rank requested a stop.

    loader: batches of uint8 images [B, 3, H, W], labels int64 [B] for the task's targets, and sample indices; ranks may
    have different numbers of batches, and every sample is on exactly one rank.
    prepare: converts uint8 images on the device to the model's input.
    flip_average: average the outputs of each image and its mirror image.
    observe: receives the outputs and targets of each batch on the device.

    Raises:
        UserError: no rank has samples.
    """
    was_training = model.training
    model.eval()
    # note: sums stay on the device to avoid synchronization; float64 counts exactly up to 2^53
    sums = torch.zeros(0, dtype=torch.float64, device=device)
    samples, interrupted = 0, False
    try:
        for images, labels, _ in loader:
            HEARTBEAT.beat()
            interrupted = should_stop()
            if interrupted:
                break
            images = prepare(images.to(device, non_blocking=True))
            targets = task.targets(labels.to(device, non_blocking=True))
            outputs = outputs_of(model, images, autocast, flip_average=flip_average)
            values = (*task.metrics(outputs, targets), task.loss(outputs, targets) * len(images))
            batch = torch.cat([value.double().view(-1) for value in values])
            sums = sums + batch if len(sums) else batch
            observe(outputs, targets)
            samples += len(images)
    finally:
        model.train(was_training)
    return _over_ranks(task, sums, samples, interrupted)


def outputs_of(
    model: nn.Module, images: Tensor, autocast: Callable[[], AbstractContextManager[object]], *, flip_average: bool
) -> Tensor:
    """Return the outputs, float32, of a model in evaluation mode for its input `images`."""
    with autocast():
        outputs: Tensor = model(images).float()
        return (outputs + model(images.flip(3)).float()) / 2 if flip_average else outputs


def _over_ranks(task: Task, sums: Tensor, samples: int, interrupted: bool) -> Evaluation | None:
    if dist.is_initialized():
        # note: a rank without images does not know the number of sums
        length = torch.tensor(len(sums)).to(sums.device)
        dist.all_reduce(length, dist.ReduceOp.MAX)
        sums = nn.functional.pad(sums, (0, int(length) - len(sums)))
    counts = torch.tensor([samples, interrupted], dtype=torch.float64).to(sums.device)
    totals = torch.cat([sums, counts])
    if dist.is_initialized():
        dist.all_reduce(totals)
    *values, samples, interruptions = totals.tolist()
    if interruptions:
        return None
    if not samples:
        raise UserError("the validation set has no images; add some, or check dataset.path")
    *sums_of_metrics, loss = values
    means = task.values.means(sums_of_metrics, samples)
    names = (metric.name for metric in task.values.metrics)
    return Evaluation(dict(zip(names, means, strict=True)), loss / samples, int(samples))
