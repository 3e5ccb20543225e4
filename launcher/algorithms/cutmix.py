"""CutMix (Yun et al. 2019): a box of each picture replaced by the same box of another, targets by area."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from torch import Tensor

from launcher.algorithms.base import Algorithm, Transform
from launcher.algorithms.cutout import erase
from launcher.algorithms.mixing import draws_of, is_chosen, mix_targets
from launcher.config.batch_algorithms import CutMixConfig
from launcher.config.declaration import Size
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


def paste(images: Tensor, order: Tensor, edges: Tensor) -> Tensor:
    """Replace a box of [B, C, H, W], int64 [1, 4] (top, left, bottom, right), by that of `images[order]`."""
    return erase(images, edges, images[order])


class CutMix(Algorithm[CutMixConfig]):
    """One box of area z ~ Beta(alpha, alpha) and one permutation for a process's batch."""

    def change_batch(self, batch: Batch, size: Size) -> Transform | None:
        if not is_chosen("cutmix", self.context.plan.config.algorithms, batch.moment):
            return None
        (height, width), draws = size, draws_of("cutmix", batch.moment)
        part = draws.beta(self.values.alpha, self.values.alpha)
        top, bottom, left, right = box(height, width, part, int(draws.integers(height)), int(draws.integers(width)))
        weight = np.array((bottom - top) * (right - left) / (height * width), dtype=np.float32)

        def mix(batch: Batch, order: Tensor, edges: Tensor, weight: Tensor) -> Batch:
            targets = mix_targets(batch.targets, order, weight, self.context.classes, self.values.smoothed)
            return replace(batch, images=paste(batch.images, order, edges), targets=targets)

        edges = np.array([[top, left, bottom, right]])
        return Transform([draws.permutation(len(batch.images)), edges, weight], mix)
