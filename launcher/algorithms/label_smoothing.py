"""Label smoothing (Szegedy et al. 2015): mix targets with the uniform distribution over classes, only in training."""

from dataclasses import replace

from torch import Tensor

from launcher.algorithms.base import Algorithm, Size, Transform
from launcher.config.batch_algorithms import LabelSmoothingConfig
from launcher.data.batch import Batch, one_hot


def smooth(targets: Tensor, smoothing: float, classes: int) -> Tensor:
    """Compute `(1 - s) y + s / classes`, float32 [B, C], of class indices int64 [B] or class weights [B, C]."""
    weights = one_hot(targets, classes)
    return weights * (1 - smoothing) + smoothing / classes


class LabelSmoothing(Algorithm[LabelSmoothingConfig]):
    """Smooths the targets of each training batch."""

    def change_batch(self, batch: Batch, size: Size) -> Transform:
        smoothing, several = self.values.smoothing, self.context.plan.config.task.labelled == "classes"
        # note: of several classes each is a distribution over yes and no
        classes = 2 if several else self.context.classes
        return Transform((), lambda batch: replace(batch, targets=smooth(batch.targets, smoothing, classes)))
