"""MixUp (Zhang et al. 2018): blend each image and its target with another sample of the batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic.dataclasses import dataclass

from launcher.algorithms.base import Algorithm, Size, Transform
from launcher.compute import randomness
from launcher.config.declaration import RunPlan
from launcher.config.fields import STRICT, Positive, Probability
from launcher.data.batch import Batch, one_hot
from launcher.errors import Problem

if TYPE_CHECKING:
    from torch import Tensor


def mix_images(images: Tensor, order: Tensor, weight: Tensor) -> Tensor:
    """Compute `(1 - weight) * images + weight * images[order]` of float [B, C, H, W]; order: int64 [B], weight: []."""
    return images.lerp(images[order], weight)


def mix_targets(targets: Tensor, order: Tensor, weight: Tensor, classes: int, smoothed: str) -> Tensor:
    """Compute `(1 - weight) * targets + weight * targets[order]` as float32 class weights [B, classes].

    targets: class indices int64 [B] or class weights [B, classes]; order: int64 [B]; weight: float32 [].
    smoothed: `first` mixes in `targets[order]` without label smoothing.
    """
    first = one_hot(targets, classes)
    # note: the true class has the largest weight also after smoothing
    second = first if smoothed == "both" else one_hot(first.argmax(1), classes)
    return first.lerp(second[order], weight)


@dataclass(config=STRICT)
class Mixing(Algorithm):
    """Mixes each sample of a batch with another by one permutation and one draw for a rank's batch.

    One uniform draw per batch selects MixUp below its probability, and CutMix in the range of its probability above.
    """

    alpha: Positive
    probability: Probability
    smoothed: Literal["both", "first"]

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        if self.smoothed == "first" and plan.config.task.labelled != "class":
            message = f"needs one class an image, unlike task={plan.config.task.name}; set both"
            yield Problem(message, "smoothed", "first")

    def set_up(self) -> None:
        mixing = [one for one in self.context.plan.config.algorithms.values() if isinstance(one, Mixing)]
        self.class_weights = "all" if sum(one.probability for one in mixing) >= 1 else "some"

    def change_batch(self, batch: Batch, size: Size) -> Transform | None:
        moment, name = batch.moment, type(self).__name__.lower()
        draws = randomness.generator(moment.seed, "mixing", moment.step, moment.rank)
        start = self.range_start()
        if not start <= draws.random() < start + self.probability:
            return None
        return self.mixture(randomness.generator(moment.seed, name, moment.step, moment.rank), len(batch.inputs), size)

    def range_start(self) -> float:
        """Return the start of the range of draws that select this algorithm."""
        return 0.0

    @abstractmethod
    def mixture(self, draws: np.random.Generator, samples: int, size: Size) -> Transform:
        """Draw the mixture for a batch of images of this size."""

    def mixed(self, batch: Batch, images: Tensor, order: Tensor, weight: Tensor) -> Batch:
        """Return the batch with mixed images, and targets mixed by the same weight."""
        targets = mix_targets(batch.targets, order, weight, self.context.classes, self.smoothed)
        return replace(batch, inputs=images, targets=targets)


@dataclass(config=STRICT)
class MixUp(Mixing, change_batch=60, acts_on=("image", "label")):
    """Blends by one weight min(z, 1 - z), z ~ Beta(alpha, alpha), for all images of a rank."""

    def mixture(self, draws: np.random.Generator, samples: int, size: Size) -> Transform:
        z = draws.beta(self.alpha, self.alpha)
        weight = np.array(min(z, 1 - z), dtype=np.float32)
        return Transform([draws.permutation(samples), weight], self._mix)

    def _mix(self, batch: Batch, order: Tensor, weight: Tensor) -> Batch:
        # note: targets get the weight as rounded to the images' format
        weight = weight.to(batch.inputs.dtype)
        return self.mixed(batch, mix_images(batch.inputs, order, weight), order, weight.float())
