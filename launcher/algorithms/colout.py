"""ColOut (MosaicML Composer, 2021): drop random rows and columns, which shrinks and slightly warps images."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from launcher.algorithms.base import Algorithm, Size, Transform
from launcher.algorithms.progressive_resizing import ProgressiveResizing
from launcher.compute import randomness
from launcher.config.declaration import RunPlan
from launcher.config.fields import STRICT
from launcher.data.batch import Batch

if TYPE_CHECKING:
    from torch import Tensor


def length_after_colout(length: int, dropped: float) -> int:
    """Return the rows or columns that ColOut keeps: floor((1 - dropped) * length)."""
    return int((1 - dropped) * length)


def draw_kept(length: int, drop_rate: float, random: np.random.Generator) -> np.ndarray:
    """Draw floor((1 - drop_rate) * length) of the indices 0..length-1 without replacement, sorted."""
    return np.sort(random.permutation(length)[: length_after_colout(length, drop_rate)])


def colout(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Keep only these rows and columns of images [B, C, H, W]."""
    return images.index_select(2, rows).index_select(3, columns)


@dataclass(config=STRICT)
class ColOut(Algorithm, change_batch=-10, acts_on=("image", "label")):
    """Draws rows and columns for each step, the same for all images on all ranks."""

    rows: Annotated[float, Field(ge=0, lt=1)]
    columns: Annotated[float, Field(ge=0, lt=1)]
    order: Literal["before_resizing", "after_resizing"]

    def place(self, point: str) -> int | None:
        """Return a place after progressive resizing with `order: after_resizing`."""
        after = point == "change_batch" and self.order == "after_resizing"
        return ProgressiveResizing.places[point] + 5 if after else super().place(point)

    def size_after(self, plan: RunPlan, step: int, size: Size) -> Size:
        return length_after_colout(size[0], self.rows), length_after_colout(size[1], self.columns)

    def change_batch(self, batch: Batch, size: Size) -> Transform:
        height, width = size
        random = randomness.generator(batch.moment.seed, "colout", batch.moment.step)
        rows, columns = draw_kept(height, self.rows, random), draw_kept(width, self.columns, random)
        return Transform([rows, columns], lambda batch, *indices: replace(batch, inputs=colout(batch.inputs, *indices)))
