"""What MixUp and CutMix share: which of them a batch gets, its draws, and the mixture of the targets."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from launcher import randomness
from launcher.config.algorithms import Algorithms
from launcher.data.batch import Moment, one_hot


def share(name: str, algorithms: Algorithms) -> tuple[float, float]:
    """The part of [0, 1) in which one uniform draw a batch chooses `name`: MixUp's probability first, then CutMix's."""
    mixup = algorithms.mixup.probability if algorithms.mixup else 0.0
    cutmix = algorithms.cutmix.probability if algorithms.cutmix else 0.0
    return (0.0, mixup) if name == "mixup" else (mixup, mixup + cutmix)


def draws_of(name: str, moment: Moment) -> np.random.Generator:
    """The generator for the draws of one process's batch."""
    return randomness.generator(moment.seed, name, moment.step, moment.rank)


def is_chosen(name: str, algorithms: Algorithms, moment: Moment) -> bool:
    """Whether this process's batch is mixed by `name`."""
    low, high = share(name, algorithms)
    return low <= draws_of("mixing", moment).random() < high


def mix_targets(targets: Tensor, order: Tensor, weight: Tensor, classes: int, smoothed: str) -> Tensor:
    """`(1 - weight) * targets + weight * targets[order]` as float32 class weights [B, classes].

    targets: int64 class indices [B] or class weights [B, classes]; order: int64 [B]; weight: float32 [].
    smoothed: `first` mixes in the bare classes, as if label smoothing had not reached them.
    """
    first = one_hot(targets, classes)
    # note: smoothing leaves the true class the largest
    second = first if smoothed == "both" else one_hot(first.argmax(1), classes)
    return first.lerp(second[order], weight)
