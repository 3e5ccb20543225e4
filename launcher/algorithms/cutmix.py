"""CutMix (Yun et al. 2019): a box of each image replaced by the same box of another, targets by area."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from launcher.algorithms.base import Size, Transform
from launcher.algorithms.cutout import erase
from launcher.algorithms.mixup import Mixing
from launcher.config.batch_algorithms import CutMixConfig
from launcher.data.batch import Batch


def box(height: int, width: int, part: float, row: int, column: int) -> tuple[int, int, int, int]:
    """Top, bottom, left, right of the box around (row, column) whose area is `part` of the image, clipped to it."""
    half_height, half_width = int(0.5 * math.sqrt(part) * height), int(0.5 * math.sqrt(part) * width)
    return (
        max(0, row - half_height),
        min(height, row + half_height),
        max(0, column - half_width),
        min(width, column + half_width),
    )


class CutMix(Mixing[CutMixConfig]):
    """One box of area z ~ Beta(alpha, alpha)."""

    def start_of_share(self) -> float:
        mixup = self.context.plan.config.algorithms.mixup
        return mixup.probability if mixup else 0.0

    def mixture(self, draws: np.random.Generator, samples: int, size: Size) -> Transform:
        (height, width), part = size, draws.beta(self.values.alpha, self.values.alpha)
        top, bottom, left, right = box(height, width, part, int(draws.integers(height)), int(draws.integers(width)))
        weight = np.array((bottom - top) * (right - left) / (height * width), dtype=np.float32)
        return Transform([draws.permutation(samples), np.array([[top, left, bottom, right]]), weight], self._mix)

    def _mix(self, batch: Batch, order: Tensor, edges: Tensor, weight: Tensor) -> Batch:
        return self.mixed(batch, erase(batch.images, edges, batch.images[order]), order, weight)
