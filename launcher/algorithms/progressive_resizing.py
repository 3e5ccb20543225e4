"""Progressive resizing (Howard 2018; Tan & Le 2021): small images first, full size at the end."""

from dataclasses import replace
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from launcher.algorithms.base import Algorithm, Size, Transform
from launcher.config.batch_algorithms import ProgressiveResizingConfig
from launcher.data.batch import Batch


def resize(images: Tensor, size: Size, interpolation: str, multiple: int = 1) -> Tensor:
    """Resize floating-point images [B, C, H, W] bilinearly with antialiasing, or to the nearest pixel.

    The nearest pixels are those of a scale to the next `multiple`, as in Composer, if PyTorch rounds it down to `size`.
    """
    if interpolation != "nearest":
        return interpolate(images, size)
    lengths = list(zip(size, images.shape[2:], strict=True))
    scales = [-(-new // multiple) * multiple / old for new, old in lengths]
    if all(int(old * scale) == new for scale, (new, old) in zip(scales, lengths, strict=True)):
        return F.interpolate(images, scale_factor=scales, mode="nearest")
    return F.interpolate(images, size, mode="nearest")


@cache
def lanczos(old: int, new: int) -> np.ndarray:
    """Return the weights, float32 [new, old], of Lanczos resampling with three lobes, antialiased as in Pillow."""
    centres = (np.arange(new)[:, None] + 0.5) * old / new
    distances = (np.arange(old) + 0.5 - centres) / max(1.0, old / new)
    weights = np.where(np.abs(distances) < 3, np.sinc(distances) * np.sinc(distances / 3), 0)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True), np.float32)


def interpolate(images: Tensor, size: Size) -> Tensor:
    """Resize bilinearly with antialiasing; in float32 on a CPU, its only kernel."""
    values = images.float() if images.device.type == "cpu" else images
    return F.interpolate(values, size, mode="bilinear", antialias=True).to(images.dtype)


class ProgressiveResizing(Algorithm[ProgressiveResizingConfig]):
    """Resizes each batch on the device to the size of the step."""

    def change_batch(self, batch: Batch, size: Size) -> Transform | None:
        new = self.values.size_after(self.context.plan, batch.moment.step, size)
        if size == new:
            return None

        sampled = self.values.interpolation == "lanczos"
        weights = [lanczos(*lengths) for lengths in zip(size, new, strict=True)] if sampled else []

        def resized(batch: Batch, *weights: Tensor) -> Batch:
            if weights:
                rows, columns = (one.to(batch.images.dtype) for one in weights)
                images = rows @ batch.images @ columns.T
            else:
                images = resize(batch.images, new, self.values.interpolation, self.values.size_multiple)
            # note: some resize kernels always return NCHW order
            if batch.images.is_contiguous(memory_format=torch.channels_last):
                images = images.contiguous(memory_format=torch.channels_last)
            return replace(batch, images=images)

        return Transform(weights, resized)
