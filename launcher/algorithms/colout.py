"""ColOut (MosaicML Composer, 2021): drop random rows and columns, which shrinks and slightly warps images."""

from dataclasses import replace

import numpy as np
from torch import Tensor

from launcher import randomness
from launcher.algorithms.base import Algorithm, Size, Transform
from launcher.config.batch_algorithms import ColOutConfig, length_after_colout
from launcher.data.batch import Batch


def draw_kept(length: int, drop_rate: float, random: np.random.Generator) -> np.ndarray:
    """Draw floor((1 - drop_rate) * length) of the indices 0..length-1 without replacement, sorted."""
    return np.sort(random.permutation(length)[: length_after_colout(length, drop_rate)])


def colout(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Keep only these rows and columns of images [B, C, H, W]."""
    return images.index_select(2, rows).index_select(3, columns)


class ColOut(Algorithm[ColOutConfig]):
    """Draws rows and columns for each step, the same for all images on all ranks."""

    def change_batch(self, batch: Batch, size: Size) -> Transform:
        height, width = size
        random = randomness.generator(batch.moment.seed, "colout", batch.moment.step)
        rows, columns = draw_kept(height, self.values.rows, random), draw_kept(width, self.values.columns, random)
        return Transform([rows, columns], lambda batch, *indices: replace(batch, images=colout(batch.images, *indices)))
