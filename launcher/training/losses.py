"""Training and evaluation losses, in float32 whatever the precision of the logits; and a model with its loss."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from torch import Tensor, nn
from torch.nn import functional as F

from launcher.config import schema
from launcher.data.batch import one_hot

# logits [B, classes] and targets (int64 [B], or floating-point class weights [B, classes]) to a scalar
Loss = Callable[[Tensor, Tensor], Tensor]


class Objective(nn.Module):
    """What training makes small: images [B, 3, H, W] and targets to their mean loss [], the model in autocast."""

    def __init__(self, model: nn.Module, loss: Loss, autocast: Callable[[], AbstractContextManager[object]]):
        super().__init__()
        self.model, self.loss, self.autocast = model, loss, autocast

    def forward(self, images: Tensor, targets: Tensor) -> Tensor:
        with self.autocast():
            logits = self.model(images)
        return self.loss(logits, targets)


def build_loss(config: schema.Loss) -> Loss:
    """The loss that the config names, a mean over samples."""
    return bce if isinstance(config, schema.BCE) else cross_entropy


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over samples of -sum(target * log softmax(logits))."""
    return F.cross_entropy(logits.float(), targets.float() if targets.is_floating_point() else targets)


def bce(logits: Tensor, targets: Tensor) -> Tensor:
    """Binary cross-entropy with logits, summed over classes and samples, divided by the batch size."""
    weights = one_hot(targets, logits.shape[1]).float()
    total = F.binary_cross_entropy_with_logits(logits.float(), weights, reduction="sum")
    return total / len(logits)
