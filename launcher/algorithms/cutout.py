"""CutOut (DeVries & Taylor 2017): blank a square of each image."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from launcher.algorithms.base import Algorithm, Size, Transform
from launcher.compute import randomness
from launcher.config.fields import STRICT
from launcher.data.batch import Batch
from launcher.later import torch

if TYPE_CHECKING:
    from torch import Tensor


def erase(images: Tensor, boxes: Tensor, fill: Tensor | float = 0.0) -> Tensor:
    """Fill a box of each image [B, C, H, W]; boxes int64 [B, 4] (top, left, bottom, right) may be empty."""
    rows = torch.arange(images.shape[2], device=images.device).view(1, 1, -1, 1)
    columns = torch.arange(images.shape[3], device=images.device).view(1, 1, 1, -1)
    top, left, bottom, right = boxes.view(-1, 4, 1, 1, 1).unbind(1)
    inside = (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)
    return torch.where(inside, fill, images)


def square_boxes(centres: np.ndarray, size: int | np.ndarray, height: int, width: int) -> np.ndarray:
    """Return boxes int64 [B, 4] of squares around centres [B, 2] in [0, 1), clipped; size: one, or int64 [B, 1].

    They reach size // 2 in each direction, as published: an odd size gives a square one pixel smaller.
    """
    middle = np.floor(centres * (height, width)).astype(np.int64)
    return np.concatenate([(middle - size // 2).clip(0), (middle + size // 2).clip(max=(height, width))], axis=1)


@dataclass(config=STRICT)
class CutOut(Algorithm, change_batch=20, acts_on=("image", "label", "mask")):
    """Fills squares of normalized images with zero, the mean colour."""

    size: Annotated[float, Field(gt=0, le=1)]

    def change_batch(self, batch: Batch, size: Size) -> Transform:
        centres = randomness.uniforms(batch.moment.seed, "cutout", batch.moment.epoch, batch.indices, 2)
        boxes = square_boxes(centres, int(self.size * min(size)), *size)
        return Transform([boxes], lambda batch, boxes: replace(batch, inputs=erase(batch.inputs, boxes)))
