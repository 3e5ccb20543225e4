"""Progressive resizing (Howard 2018; Tan & Le 2021): small pictures first, full size at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from launcher.algorithms.base import UNCHANGED, DrawingAlgorithm, Drawn
from launcher.config.algorithms import ProgressiveResizingConfig
from launcher.data.batch import Batch, Moment


def resize(images: Tensor, side: int, interpolation: str) -> Tensor:
    """Floating-point images [B, C, H, W] to [B, C, side, side]: bilinear with antialias, or nearest; order kept."""
    if images.shape[-2:] == (side, side):
        return images
    if interpolation == "nearest":
        return F.interpolate(images, size=(side, side), mode="nearest")
    return interpolate(images, size=(side, side))


def interpolate(images: Tensor, **to: Any) -> Tensor:
    """Bilinear with antialias, to a `size` or by a `scale_factor`; in float32 on a CPU, which has no other kernel."""
    values = images.float() if images.device.type == "cpu" else images
    return F.interpolate(values, mode="bilinear", antialias=True, **to).to(images.dtype)


class ProgressiveResizing(DrawingAlgorithm[ProgressiveResizingConfig]):
    """Resizes each batch on the device to the step's side, which chance has no part in."""

    def draw(self, batch: Batch, height: int, width: int) -> Drawn:
        side = self.context.plan.resized_size(batch.moment.step)
        if (height, width) == (side, side):
            return UNCHANGED

        def resized(batch: Batch, _: Sequence[Tensor]) -> Batch:
            images = resize(batch.images, side, self.values.interpolation)
            # note: some resize kernels answer in NCHW order whatever they are given
            if batch.images.is_contiguous(memory_format=torch.channels_last):
                images = images.contiguous(memory_format=torch.channels_last)
            return replace(batch, images=images)

        return Drawn((), resized)

    def size_after(self, height: int, width: int, moment: Moment) -> tuple[int, int]:
        side = self.context.plan.resized_size(moment.step)
        return side, side
