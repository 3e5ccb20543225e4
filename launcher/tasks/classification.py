"""Classification: each image has one class; losses are float32 for any precision of the logits."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional as F

from launcher.config.tasks import ClassificationConfig
from launcher.data.batch import one_hot

TOP = 5


class Classification:
    """Has targets that are class indices, int64 [B], or class weights, floating-point [B, classes]."""

    def __init__(self, values: ClassificationConfig, loss: str):
        self.values, self.is_sigmoid = values, loss == "bce"

    def targets(self, labels: Tensor) -> Tensor:
        return labels

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return bce(outputs, targets) if self.is_sigmoid else cross_entropy(outputs, targets)

    def metrics(self, outputs: Tensor, targets: Tensor) -> Sequence[Tensor]:
        """Count top-1 and top-5 hits of class indices, int64 [B]; with fewer than five classes all are top-5 hits."""
        hits = outputs.topk(min(TOP, outputs.shape[1])).indices == targets[:, None]
        return hits[:, 0].sum(), hits.sum()

    def predictions(self, outputs: Tensor, names: Sequence[str], top: int) -> list[list[tuple[str, float]]]:
        """Return the likeliest classes with their probabilities; with BCE those of each class are independent."""
        best = (outputs.sigmoid() if self.is_sigmoid else outputs.softmax(1)).topk(min(top, outputs.shape[1]))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [[(names[number], score) for number, score in zip(*pair, strict=True)] for pair in pairs]


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over samples of -sum(target * log softmax(logits))."""
    return F.cross_entropy(logits.float(), targets.float() if targets.is_floating_point() else targets)


def bce(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the binary cross-entropy of logits, summed over classes and averaged over samples."""
    weights = one_hot(targets, logits.shape[1]).float()
    total = F.binary_cross_entropy_with_logits(logits.float(), weights, reduction="sum")
    return total / len(logits)
