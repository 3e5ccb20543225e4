"""Label smoothing (Szegedy et al. 2015): mix targets with the uniform distribution over classes, only in training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from pydantic.dataclasses import dataclass

from launcher.algorithms.base import Algorithm, Loss, Size, Transform
from launcher.config.declaration import AlgorithmConfig, RunPlan
from launcher.config.fields import STRICT, Probability
from launcher.counts import count_of
from launcher.data.batch import Batch, one_hot
from launcher.errors import Problem

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, config=STRICT)
class LabelSmoothingConfig(AlgorithmConfig, change_batch=50, change_loss=20, acts_on=("image", "label", "tokens")):
    smoothing: Probability | list[Probability]

    needs_classes = "numbers have no uniform distribution to mix them with"

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        if not isinstance(self.smoothing, list):
            return
        task, classes = plan.config.task, plan.config.dataset.classes
        if "tokens" in task.needs:
            yield Problem(f"must be one number for task={task.name}", "smoothing", self.smoothing)
        elif len(self.smoothing) != classes:
            has = f"has {count_of(len(self.smoothing), 'number')} for {task.counted(classes)}"
            yield Problem(f"{has}; set one per class, in the order of their names", "smoothing", self.smoothing)


def smooth(targets: Tensor, smoothing: float | Tensor, classes: int) -> Tensor:
    """Compute `(1 - s) y + s / classes`, float32 [B, C], of class indices int64 [B] or class weights [B, C]."""
    weights = one_hot(targets, classes)
    return weights * (1 - smoothing) + smoothing / classes


def smooth_by_class(targets: Tensor, smoothing: Tensor, classes: int) -> Tensor:
    """Compute the same where each class moves its own fraction of its weight, `smoothing` float32 [C]."""
    weights = one_hot(targets, classes)
    moved = weights * smoothing
    return weights - moved + moved.sum(1, keepdim=True) / classes


class LabelSmoothing(Algorithm[LabelSmoothingConfig]):
    """Smooths the targets of each training batch."""

    class_weights = "all"

    def change_loss(self, loss: Loss) -> Loss:
        """Add the uniform distribution's loss for tokens, whose weights of classes would not fit in memory."""
        if not self._of_tokens:
            return loss
        smoothing = self.values.smoothing
        assert not isinstance(smoothing, list)

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
        smoothing, several = self.values.smoothing, self.context.plan.config.task.labelled == "classes"
        # note: of several classes each is a distribution over yes and no
        classes = 2 if several else self.context.classes
        if not isinstance(smoothing, list):
            return Transform((), lambda batch: replace(batch, targets=smooth(batch.targets, smoothing, classes)))
        change = smooth if several else smooth_by_class
        return Transform(
            [np.array(smoothing, np.float32)],
            lambda batch, by_class: replace(batch, targets=change(batch.targets, by_class, classes)),
        )
