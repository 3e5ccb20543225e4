"""Dice loss (Milletari et al. 2016) plus cross-entropy of each pixel's class, as of nnU-Net (Isensee et al. 2021)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

from pydantic.dataclasses import dataclass

from launcher.config.choices import LossConfig, LossFunction
from launcher.config.fields import STRICT, NotNegative
from launcher.config.tasks import TaskConfig
from launcher.data.masks.values import IGNORED
from launcher.later import F, torch

if TYPE_CHECKING:
    from torch import Tensor

_SMOOTHING = 1e-5


@dataclass(frozen=True, config=STRICT)
class DiceCrossEntropy(LossConfig):
    """The sum of both, each with its weight; `background`: Dice includes the first class."""

    labels = ("pixels",)
    scores = "softmax"

    name: Literal["dice_cross_entropy"]
    dice: NotNegative
    cross_entropy: NotNegative
    background: bool

    def function(self, task: TaskConfig) -> LossFunction:
        return partial(_sum, values=self)


def _sum(logits: Tensor, targets: Tensor, values: DiceCrossEntropy) -> Tensor:
    """Return the loss of logits [B, C, H, W]; a pass of a batch is of one rank, so Dice depends on their number."""
    total = logits.new_zeros(())
    if values.dice:
        total = total + values.dice * dice_loss(logits, targets, background=values.background)
    if values.cross_entropy:
        total = total + values.cross_entropy * pixel_cross_entropy(logits, targets)
    return total


def dice_loss(logits: Tensor, targets: Tensor, *, background: bool) -> Tensor:
    """Return 1 minus the soft Dice of the softmax, averaged over classes, each over all pixels of the batch.

    logits: float32 [B, C, H, W]. targets: int64 [B, H, W], IGNORED where a pixel does not count. As MONAI's DiceLoss
    with softmax, `batch` and `include_background=background`.
    """
    scores = logits.softmax(1)
    counts = (targets != IGNORED)[:, None]
    truth = (targets[:, None] == torch.arange(logits.shape[1], device=targets.device).view(1, -1, 1, 1)).to(
        scores.dtype
    )
    first = 0 if background or logits.shape[1] == 1 else 1
    scores, truth = (scores * counts)[:, first:], truth[:, first:]
    both, either = (scores * truth).sum((0, 2, 3)), (scores + truth).sum((0, 2, 3))
    return (1 - (2 * both + _SMOOTHING) / (either + _SMOOTHING)).mean()


def pixel_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of the pixels that count; 0 without any."""
    total = F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")
    return total / (targets != IGNORED).sum().clamp(min=1)
