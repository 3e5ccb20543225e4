"""Label smoothing (Szegedy et al. 2015): mix targets with the uniform distribution over classes, only in training."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic.dataclasses import dataclass

from launcher.algorithms.base import Algorithm, Loss, Size, Transform
from launcher.config.fields import STRICT, Probability
from launcher.data.batch import Batch, one_hot

if TYPE_CHECKING:
    from torch import Tensor


def smooth(targets: Tensor, smoothing: float, classes: int) -> Tensor:
    """Compute `(1 - s) y + s / classes`, float32 [B, C], of class indices int64 [B] or class weights [B, C]."""
    weights = one_hot(targets, classes)
    return weights * (1 - smoothing) + smoothing / classes


@dataclass(config=STRICT)
class LabelSmoothing(Algorithm, change_batch=50, change_loss=20, acts_on=("image", "label", "tokens")):
    """Smooths the targets of each training batch."""

    needs_classes = "numbers have no uniform distribution to mix them with"
    class_weights = "all"

    smoothing: Probability

    def change_loss(self, loss: Loss) -> Loss:
        """Add the uniform distribution's loss for tokens, whose weights of classes would not fit in memory."""
        if not self._of_tokens:
            return loss
        smoothing = self.smoothing

        def smoothed(outputs: Tensor, targets: Tensor) -> Tensor:
            uniform = -outputs.float().log_softmax(-1).mean()
            return (1 - smoothing) * loss(outputs, targets) + smoothing * uniform

        return smoothed

    @property
    def _of_tokens(self) -> bool:
        return "tokens" in self.context.plan.config.task.needs

    def change_batch(self, batch: Batch, size: Size) -> Transform | None:
        if self._of_tokens:
            return None
        smoothing, several = self.smoothing, self.context.plan.config.task.labelled == "classes"
        # note: of several classes each is a distribution over yes and no
        classes = 2 if several else self.context.classes
        return Transform((), lambda batch: replace(batch, targets=smooth(batch.targets, smoothing, classes)))
