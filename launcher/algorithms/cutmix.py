"""CutMix (Yun et al. 2019): a box of each picture replaced by the same box of another, targets by area."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from launcher.algorithms.base import DrawingAlgorithm, Drawn
from launcher.algorithms.mixing import UNMIXED, draws_of, is_chosen, mix_targets
from launcher.config.algorithms import CutMixConfig
from launcher.data.batch import Batch


def box(height: int, width: int, part: float, row: int, column: int) -> tuple[int, int, int, int]:
    """Top, bottom, left, right of the box around (row, column) whose area is `part` of the picture, clipped to it."""
    half_height, half_width = int(0.5 * math.sqrt(part) * height), int(0.5 * math.sqrt(part) * width)
    return (
        max(0, row - half_height),
        min(height, row + half_height),
        max(0, column - half_width),
        min(width, column + half_width),
    )


def paste(images: Tensor, order: Tensor, edges: tuple[int, int, int, int]) -> tuple[Tensor, float]:
    """Replace a box of [B, C, H, W] by that of `images[order]`; returns the pictures and the box's part of the area."""
    top, bottom, left, right = edges
    pasted = images.clone()
    pasted[..., top:bottom, left:right] = images[..., top:bottom, left:right][order]
    return pasted, (bottom - top) * (right - left) / (images.shape[-2] * images.shape[-1])


class CutMix(DrawingAlgorithm[CutMixConfig]):
    """One box of area z ~ Beta(alpha, alpha) and one permutation for a process's batch."""

    def draw(self, batch: Batch, height: int, width: int) -> Drawn:
        if not is_chosen("cutmix", self.context.plan.config.algorithms, batch.moment):
            return UNMIXED
        draws = draws_of("cutmix", batch.moment)
        part = draws.beta(self.values.alpha, self.values.alpha)
        edges = box(height, width, part, int(draws.integers(height)), int(draws.integers(width)))

        def mix(batch: Batch, drawn: Sequence[Tensor]) -> Batch:
            (order,) = drawn
            images, weight = paste(batch.images, order, edges)
            targets = mix_targets(batch.targets, order, weight, self.context.classes, self.values.smoothed)
            return replace(batch, images=images, targets=targets)

        return Drawn([draws.permutation(len(batch.images))], mix)
