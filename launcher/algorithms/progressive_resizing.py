"""Progressive resizing (Howard 2018; Tan & Le 2021): small images first, full size at the end."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Literal, Self

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from launcher.algorithms.base import Algorithm, Size, Transform
from launcher.config.declaration import RunPlan
from launcher.config.fields import STRICT, Count, Positive, Probability, edges, in_ratio
from launcher.data.batch import Batch
from launcher.errors import Problem
from launcher.later import F, torch

if TYPE_CHECKING:
    from torch import Tensor

# Image size in pixels, as those of `image`, and fraction of the run's pixels.
Stage = Annotated[list[Positive], Field(min_length=2, max_length=2)]


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


@dataclass(config=STRICT)
class ProgressiveResizing(Algorithm, change_batch=10, acts_on=("image", "label", "mask")):
    """Resizes each batch on the device to the size of the step.

    A ramp from `initial_scale`, or `stages`: image sizes, each with its fraction of the run's compute.
    """

    stages: Annotated[list[Stage], Field(min_length=1)] | None
    initial_scale: Annotated[float, Field(gt=0, le=1)]
    delay: Probability
    finetune: Probability
    size_multiple: Count
    interpolation: Literal["bilinear", "lanczos", "nearest"]
    granularity: Literal["step", "epoch"]
    where: Literal["device", "loader"]

    def size(self, plan: RunPlan, step: int) -> int:
        """Return the shorter edge at a step, rounded to `size_multiple`; fixed per epoch with `granularity: epoch`.

        `interpolation: nearest` gives the sizes of the published code, a pixel smaller at two of the multiples.
        """
        step = plan.epoch_start(step) if self.granularity == "epoch" else step
        if self.stages:
            return self._stage_size(plan, self.stages, step / plan.total_steps)
        full, scale = plan.full_view, self.scale(step / plan.total_steps)
        if scale == 1.0:
            return full
        size = max(self.size_multiple, round(scale * full / self.size_multiple) * self.size_multiple)
        # note: Composer passes PyTorch the scale, not the size: 176 * (120 / 176) is less than 120, and floored to 119
        return math.floor(full * (size / full)) if self.interpolation == "nearest" else size

    def _stage_size(self, plan: RunPlan, stages: list[Stage], progress: float) -> int:
        """Return the size of the stage at a fraction of the run's steps, of which small images need more."""
        sizes = [plan.config.scaled_size(int(size)) for size, _ in stages]
        steps = [share / size**2 for size, (_, share) in zip(sizes, stages, strict=True)]
        ends = [end / sum(steps) for end in accumulate(steps)]
        return next((size for size, end in zip(sizes, ends, strict=True) if progress < end), sizes[-1])

    def scale(self, progress: float) -> float:
        """Return the scale at a fraction of the run: initial for `delay`, 1 for the last `finetune`, linear between."""
        # note: computed in this order, as in Composer, since rounding to a multiple can depend on the last bit
        ramp = 1 - self.finetune - self.delay
        if progress < self.delay:
            return self.initial_scale
        if progress >= 1 - self.finetune or ramp <= 0:
            return 1.0
        return self.initial_scale + (1 - self.initial_scale) * ((progress - self.delay) / ramp)

    def loaded_view(self, plan: RunPlan, step: int) -> int | None:
        return self.size(plan, step) if self.where == "loader" else None

    def size_after(self, plan: RunPlan, step: int, size: Size) -> Size:
        return in_ratio(self.size(plan, step), plan.full_size)

    @classmethod
    def advice(cls, values: Self | None, bound: Literal["data", "step"]) -> str | None:
        if bound == "data" and values is not None and values.where == "device":
            return "algorithms.progressive_resizing.where=loader: crops images directly to the size of the step"
        if bound == "step" and values is None:
            return "algorithms.progressive_resizing=on: trains on smaller images first; changes the result"
        return None

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        sizes = [size for size, _ in self.stages or ()]
        last = min(edges(plan.config.image.train_size))
        if sizes and (sizes != sorted(sizes) or sizes[-1] != last):
            message = f"sizes must rise to {last}, the shorter edge of image.train_size"
            yield Problem(message, "stages", self.stages)
        if sizes and not math.isclose(total := sum(share for _, share in self.stages or ()), 1, abs_tol=1e-3):
            yield Problem(f"fractions of the compute must sum to 1, not {total:g}", "stages", self.stages)
        if self.delay + self.finetune > 1:
            message = f"must be at most 1 - delay = {1 - self.delay:g}"
            yield Problem(message, "finetune", self.finetune)

    def change_batch(self, batch: Batch, size: Size) -> Transform | None:
        new = self.size_after(self.context.plan, batch.moment.step, size)
        if size == new:
            return None

        sampled = self.interpolation == "lanczos"
        weights = [lanczos(*lengths) for lengths in zip(size, new, strict=True)] if sampled else []

        def resized(batch: Batch, *weights: Tensor) -> Batch:
            if weights:
                rows, columns = (one.to(batch.inputs.dtype) for one in weights)
                images = rows @ batch.inputs @ columns.T
            else:
                images = resize(batch.inputs, new, self.interpolation, self.size_multiple)
            # note: some resize kernels always return NCHW order
            if batch.inputs.is_contiguous(memory_format=torch.channels_last):
                images = images.contiguous(memory_format=torch.channels_last)
            masks = batch.targets
            if masks.ndim == 3:
                # note: classes below 256 are exact in float32
                masks = F.interpolate(masks[:, None].float(), new, mode="nearest-exact")[:, 0].long()
            return replace(batch, inputs=images, targets=masks)

        return Transform(weights, resized)
