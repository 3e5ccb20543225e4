"""ColOut (MosaicML Composer, 2021): drop random rows and columns, so that pictures are smaller and slightly warped."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor, nn

from launcher import randomness
from launcher.algorithms.base import Algorithm
from launcher.data.batch import Batch
from launcher.data.device import to_device
from launcher.plan import sizes


def kept(length: int, dropped: float, random: np.random.Generator) -> np.ndarray:
    """floor((1 - dropped) * length) of the indices 0..length-1, drawn without replacement and sorted."""
    return np.sort(random.permutation(length)[: sizes.kept(length, dropped)])


def colout(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Images [B, C, H, W] with the given rows and columns alone, the same for the whole batch."""
    return images.index_select(2, rows).index_select(3, columns)


class ColOut(Algorithm):
    """Draws rows and columns anew for each step, the same on all ranks."""

    def change_batch(self, batch: Batch, model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> Batch:
        random = randomness.generator(batch.moment.seed, "colout", batch.moment.step)
        rows = kept(batch.images.shape[2], self.values.rows, random)
        columns = kept(batch.images.shape[3], self.values.columns, random)
        return batch.having(images=colout(batch.images, *to_device(rows, columns, device=batch.images.device)))


ALGORITHM = ColOut
