"""MixUp (Zhang et al. 2018): each image and its target blended with another of the batch."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import TypeVar

import numpy as np
from torch import Tensor

from launcher import randomness
from launcher.algorithms.base import Algorithm, Size, Transform
from launcher.config.batch_algorithms import MixingConfig, MixUpConfig
from launcher.data.batch import Batch, one_hot

MixingT = TypeVar("MixingT", bound=MixingConfig)


def mix_images(images: Tensor, order: Tensor, weight: Tensor) -> Tensor:
    """`(1 - weight) * images + weight * images[order]` of floating-point [B, C, H, W] and []; order: int64 [B]."""
    return images.lerp(images[order], weight)


def mix_targets(targets: Tensor, order: Tensor, weight: Tensor, classes: int, smoothed: str) -> Tensor:
    """`(1 - weight) * targets + weight * targets[order]` as float32 class weights [B, classes].

    targets: int64 class indices [B] or class weights [B, classes]; order: int64 [B]; weight: float32 [].
    smoothed: `first` mixes in the bare classes, as if label smoothing had not reached them.
    """
    first = one_hot(targets, classes)
    # note: smoothing leaves the true class the largest
    second = first if smoothed == "both" else one_hot(first.argmax(1), classes)
    return first.lerp(second[order], weight)


class Mixing(Algorithm[MixingT]):
    """Mixes each sample of a batch with another: one permutation and one draw of the mixture for a rank's batch.

    One uniform draw a batch decides between MixUp, below its probability, and CutMix, in the range of its own above.
    """

    def change_batch(self, batch: Batch, size: Size) -> Transform | None:
        moment, name = batch.moment, type(self).__name__.lower()
        draws = randomness.generator(moment.seed, "mixing", moment.step, moment.rank)
        start = self.start_of_share()
        if not start <= draws.random() < start + self.values.probability:
            return None
        return self.mixture(randomness.generator(moment.seed, name, moment.step, moment.rank), len(batch.images), size)

    def start_of_share(self) -> float:
        """Where the draws begin that choose it."""
        return 0.0

    @abstractmethod
    def mixture(self, draws: np.random.Generator, samples: int, size: Size) -> Transform:
        """Draw the mixture of a batch of images of this size."""

    def mixed(self, batch: Batch, images: Tensor, order: Tensor, weight: Tensor) -> Batch:
        """The batch with mixed images, and its targets mixed by the same weight."""
        targets = mix_targets(batch.targets, order, weight, self.context.classes, self.values.smoothed)
        return replace(batch, images=images, targets=targets)


class MixUp(Mixing[MixUpConfig]):
    """One weight min(z, 1 - z), z ~ Beta(alpha, alpha)."""

    def mixture(self, draws: np.random.Generator, samples: int, size: Size) -> Transform:
        z = draws.beta(self.values.alpha, self.values.alpha)
        weight = np.array(min(z, 1 - z), dtype=np.float32)
        return Transform([draws.permutation(samples), weight], self._mix)

    def _mix(self, batch: Batch, order: Tensor, weight: Tensor) -> Batch:
        # note: in the images' own format, and for the targets the same number
        weight = weight.to(batch.images.dtype)
        return self.mixed(batch, mix_images(batch.images, order, weight), order, weight.float())
