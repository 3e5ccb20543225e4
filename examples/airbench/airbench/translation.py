"""Random translations by whole pixels, the usual crop of small images (He et al. 2016, section 4.2)."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from launcher.algorithms.base import Algorithm, Size, Transform
from launcher.compute import randomness
from launcher.config.fields import STRICT
from launcher.data.batch import Batch


def translated(images: Tensor, shifts: Tensor) -> Tensor:
    """Return windows of images [B, C, H, W] at shifts int64 [B, 2] down and right; beyond edges are mirror images.

    Equal to a crop after padding by reflection. Keeps channels-last memory order.
    """

    def places(length: int, shift: Tensor) -> Tensor:
        within = (torch.arange(length, device=images.device) + shift[:, None]).abs()
        return length - 1 - (length - 1 - within).abs()

    rows, columns = (places(images.shape[2 + axis], shifts[:, axis]) for axis in (0, 1))
    numbers = torch.arange(len(images), device=images.device)[:, None, None]
    return images.permute(0, 2, 3, 1)[numbers, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


@dataclass(config=STRICT)
class Translation(Algorithm, change_batch=-60, acts_on=("image", "label")):
    """Moves each image by up to `distance` of its size on each axis, all distances being equally likely."""

    distance: Annotated[float, Field(gt=0, lt=1)]

    def change_batch(self, batch: Batch, size: Size) -> Transform:
        most = int(self.distance * min(size))
        draws = randomness.uniforms(batch.moment.seed, "translation", batch.moment.epoch, batch.indices, 2)
        shifts = np.floor(draws * (2 * most + 1)).astype(np.int64) - most
        return Transform([shifts], lambda batch, shifts: replace(batch, inputs=translated(batch.inputs, shifts)))
