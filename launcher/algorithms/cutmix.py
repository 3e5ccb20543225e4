"""CutMix (Yun et al. 2019): replace a box of each image by that of another, and mix targets by area.

Of masks the same box is replaced.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from pydantic.dataclasses import dataclass

from launcher.algorithms.base import Size, Transform
from launcher.algorithms.cutout import erase
from launcher.algorithms.mixup import Mixing, MixUp
from launcher.config.declaration import RunPlan
from launcher.config.fields import STRICT
from launcher.data.batch import Batch
from launcher.errors import Problem

if TYPE_CHECKING:
    from torch import Tensor


def box(height: int, width: int, area: float, row: int, column: int) -> tuple[int, int, int, int]:
    """Return top, bottom, left, right of a box around (row, column) with a fraction `area` of the image, clipped."""
    half_height, half_width = int(0.5 * math.sqrt(area) * height), int(0.5 * math.sqrt(area) * width)
    return (
        max(0, row - half_height),
        min(height, row + half_height),
        max(0, column - half_width),
        min(width, column + half_width),
    )


@dataclass(config=STRICT)
class CutMix(Mixing, change_batch=70, acts_on=("image", "label", "mask")):
    """Replaces one box for all images of a rank, whose area is a fraction z ~ Beta(alpha, alpha)."""

    needs_classes = "a part of an image does not have that part of its numbers"

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        yield from super().problems(plan)
        mixup = plan.config.algorithms.get("mixup")
        if isinstance(mixup, MixUp) and mixup.probability + self.probability > 1:
            message = (
                f"MixUp (probability {mixup.probability:g}) and CutMix share the batches: their probabilities "
                f"must sum to at most 1, such as algorithms.mixup.probability=0.5 algorithms.cutmix.probability=0.5"
            )
            yield Problem(message, "probability", self.probability)

    def range_start(self) -> float:
        mixup = self.context.plan.config.algorithms.get("mixup")
        return mixup.probability if isinstance(mixup, MixUp) else 0.0

    def mixture(self, draws: np.random.Generator, samples: int, size: Size) -> Transform:
        (height, width), area = size, draws.beta(self.alpha, self.alpha)
        top, bottom, left, right = box(height, width, area, int(draws.integers(height)), int(draws.integers(width)))
        weight = np.array((bottom - top) * (right - left) / (height * width), dtype=np.float32)
        return Transform([draws.permutation(samples), np.array([[top, left, bottom, right]]), weight], self._mix)

    def _mix(self, batch: Batch, order: Tensor, edges: Tensor, weight: Tensor) -> Batch:
        images = erase(batch.inputs, edges, batch.inputs[order])
        if batch.targets.ndim == 3:
            masks = batch.targets[:, None]
            return replace(batch, inputs=images, targets=erase(masks, edges, masks[order])[:, 0])
        return self.mixed(batch, images, order, weight)
