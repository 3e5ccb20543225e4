"""Repeated augmentation (Hoffer et al. 2020, Berman et al. 2019): several draws of each image in one batch."""

from __future__ import annotations

import numpy as np

from launcher.algorithms.base import Algorithm
from launcher.config.batch_algorithms import RepeatedAugmentationConfig


def repeat(order: np.ndarray, repeats: int, batch_size: int) -> np.ndarray:
    """The first images of an epoch's order [N], each `repeats` times, as indices int64 [N].

    Repeat r of image i is the index i + r * N, so that its random draws are its own. A global batch holds the
    repeats of an image, apart from each other: first those with r = 0, then r = 1 and so on.
    """
    samples = len(order)
    first = order[: -(-samples // repeats)]
    indices = (first[:, None] + np.arange(repeats)[None, :] * samples).ravel()[:samples]
    batch_numbers = np.arange(samples) // batch_size
    return np.asarray(indices[np.lexsort((indices // samples, batch_numbers))])


class RepeatedAugmentation(Algorithm[RepeatedAugmentationConfig]):
    """An epoch has as many steps as before and reads one image in `repeats`."""

    def change_order(self, order: np.ndarray) -> np.ndarray:
        return repeat(order, self.values.repeats, self.context.plan.config.batch_size)
