"""Accuracy and loss on the validation set, over all ranks together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from launcher.errors import UserError
from launcher.rank.heartbeat import HEARTBEAT
from launcher.training.losses import Loss


@dataclass(frozen=True)
class Evaluation:
    """Over all ranks: accuracies in [0, 1] (top-5: of fewer classes, all of them), mean loss, samples counted."""

    top1: float
    top5: float
    loss: float
    samples: int


@torch.inference_mode()
def evaluate(
    model: nn.Module,
    loader: Iterable[tuple[Tensor, Tensor, Any]],
    prepare: Callable[[Tensor], Tensor],
    loss: Loss,
    device: torch.device,
    autocast: Callable[[], AbstractContextManager[object]],
    *,
    flip_average: bool,
    should_stop: Callable[[], bool],
    confusion: Tensor | None = None,
) -> Evaluation | None:
    """Evaluate on this rank's share of the samples and add up over ranks; None if any rank was asked to stop.

    loader: batches of uint8 images [B, 3, H, W], int64 labels [B] and sample indices; ranks may have different
    numbers of batches, and every sample is on one rank only.
    prepare: uint8 images on the device to the model's input.
    flip_average: average the logits of a picture and its mirror image.
    confusion: int64 [classes, classes] on the device, to which the samples of all ranks are added, by their label and
    by the class of the largest logit.

    Raises:
        UserError: no samples on any rank.
    """
    was_training = model.training
    model.eval()
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    samples, interrupted = 0, False
    try:
        for images, labels, _ in loader:
            HEARTBEAT.beat()
            interrupted = should_stop()
            if interrupted:
                break
            images = prepare(images.to(device, non_blocking=True))
            labels = labels.to(device, non_blocking=True)
            logits = logits_of(model, images, autocast, flip_average=flip_average)
            # note: sums stay on the device, no CPU-GPU synchronisation a batch
            best = logits.topk(min(5, logits.shape[1])).indices
            sums += _sums(logits, best, labels, loss)
            if confusion is not None:
                _count(confusion, labels, best[:, 0])
            samples += len(labels)
    finally:
        model.train(was_training)
    if confusion is not None and dist.is_initialized():
        dist.all_reduce(confusion)
    return _over_ranks(sums, samples, interrupted)


def logits_of(
    model: nn.Module, images: Tensor, autocast: Callable[[], AbstractContextManager[object]], *, flip_average: bool
) -> Tensor:
    """Logits float32 [B, classes] of a model in evaluation mode, whose input is `images`."""
    with autocast():
        logits: Tensor = model(images).float()
        return (logits + model(images.flip(3)).float()) / 2 if flip_average else logits


def _sums(logits: Tensor, best: Tensor, labels: Tensor, loss: Loss) -> Tensor:
    """Top-1 hits, top-5 hits and summed loss of one batch; float64 [3], which counts exactly up to 2^53.

    best: int64 [B, 5] classes of the largest logits, the largest first.
    """
    hits = best == labels[:, None]
    values = (hits[:, 0].sum(), hits.sum(), loss(logits, labels) * len(labels))
    return torch.stack([value.double() for value in values])


def _count(confusion: Tensor, labels: Tensor, found: Tensor) -> None:
    """Add one batch, without a CPU-GPU synchronisation, which bincount would be."""
    confusion.view(-1).index_add_(0, labels * len(confusion) + found, torch.ones_like(labels))


def _over_ranks(sums: Tensor, samples: int, interrupted: bool) -> Evaluation | None:
    counts = torch.tensor([samples, interrupted], dtype=torch.float64).to(sums.device)
    totals = torch.cat([sums, counts])
    if dist.is_initialized():
        dist.all_reduce(totals)
    top1, top5, loss, samples, interruptions = totals.tolist()
    if interruptions:
        return None
    if not samples:
        raise UserError("the validation set has no pictures: give it some, or check dataset.path")
    return Evaluation(top1 / samples, top5 / samples, loss / samples, int(samples))
