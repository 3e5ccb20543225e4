"""Repeated augmentation (Hoffer et al. 2020, Berman et al. 2019): several augmentations of each image in a batch."""

from typing import Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from launcher.algorithms.base import Algorithm
from launcher.config.fields import STRICT
from launcher.data.batch import Moment


def repeat(order: np.ndarray, repeats: int, batch_size: int) -> np.ndarray:
    """Repeat the first images of an epoch's order [N] `repeats` times each, as indices int64 [N].

    Repeat r of image i has the index i + r * N and thus its own random draws. A global batch contains all repeats of an
    image, apart from each other: first those with r = 0, then those with r = 1 and so on.
    """
    samples = len(order)
    # note: an order that draws images repeatedly has indices of N and more
    stride = (int(order.max(initial=0)) // samples + 1) * samples
    first = order[: -(-samples // repeats)]
    indices = (first[:, None] + np.arange(repeats)[None, :] * stride).ravel()[:samples]
    batch_numbers = np.arange(samples) // batch_size
    return np.asarray(indices[np.lexsort((indices // stride, batch_numbers))])


@dataclass(config=STRICT)
class RepeatedAugmentation(Algorithm, change_order=10, acts_on=("image", "label", "mask")):
    """Reads one of `repeats` images per epoch, which keeps its number of steps."""

    repeats: Annotated[int, Field(ge=2)]

    def change_order(self, order: np.ndarray, moment: Moment) -> np.ndarray:
        return repeat(order, self.repeats, self.context.plan.batch_size)
