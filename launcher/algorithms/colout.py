"""ColOut (MosaicML Composer, 2021): drop random rows and columns, so that images are smaller and slightly warped."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import Tensor

from launcher import randomness
from launcher.algorithms.base import Algorithm, Size, Transform
from launcher.config.batch_algorithms import ColOutConfig, length_after_colout
from launcher.data.batch import Batch


def kept(length: int, dropped: float, random: np.random.Generator) -> np.ndarray:
    """floor((1 - dropped) * length) of the indices 0..length-1, drawn without replacement and sorted."""
    return np.sort(random.permutation(length)[: length_after_colout(length, dropped)])


def colout(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Images [B, C, H, W] with the given rows and columns alone, the same for the whole batch."""
    return images.index_select(2, rows).index_select(3, columns)


class ColOut(Algorithm[ColOutConfig]):
    """Draws rows and columns anew for each step, the same on all ranks."""

    def change_batch(self, batch: Batch, size: Size) -> Transform:
        height, width = size
        random = randomness.generator(batch.moment.seed, "colout", batch.moment.step)
        rows, columns = kept(height, self.values.rows, random), kept(width, self.values.columns, random)
        return Transform([rows, columns], lambda batch, *kept: replace(batch, images=colout(batch.images, *kept)))
