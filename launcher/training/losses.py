"""Training and evaluation losses, in float32 whatever the precision of the logits."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional as F

from launcher.config import schema

# logits [B, classes] and targets (int64 [B], or floating-point class weights [B, classes]) to a scalar
Loss = Callable[[Tensor, Tensor], Tensor]


def build_loss(config: schema.Loss) -> Loss:
    """The loss that the config names, a mean over samples."""
    return bce if isinstance(config, schema.BCE) else cross_entropy


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over samples of -sum(target * log softmax(logits))."""
    return F.cross_entropy(logits.float(), targets.float() if targets.is_floating_point() else targets)


def bce(logits: Tensor, targets: Tensor) -> Tensor:
    """Binary cross-entropy with logits, summed over classes and samples, divided by the batch size."""
    if not targets.is_floating_point():
        targets = F.one_hot(targets, logits.shape[1])
    total = F.binary_cross_entropy_with_logits(logits.float(), targets.float(), reduction="sum")
    return total / len(logits)
