"""Random erasing (Zhong et al. 2017): blank a rectangle of some images, or fill it with noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic.dataclasses import dataclass

from launcher.algorithms.base import Algorithm, Size, Transform
from launcher.algorithms.cutout import erase
from launcher.compute import randomness
from launcher.config.fields import STRICT, FractionRange, PositiveRange, Probability
from launcher.data.batch import Batch
from launcher.later import torch

if TYPE_CHECKING:
    from torch import Tensor


_TRIES = 10


def random_boxes(
    draws: np.ndarray, probability: float, area: Sequence[float], ratio: Sequence[float], height: int, width: int
) -> np.ndarray:
    """Return boxes int64 [B, 4], (top, left, bottom, right) or empty, from uniform draws [B, 1 + 4 * tries].

    The area is uniform in `area` as fractions of the image, the aspect ratio log-uniform in `ratio`; the first of ten
    tries that fits is used.
    """
    boxes = np.zeros((len(draws), 4), dtype=np.int64)
    pending = draws[:, 0] < probability
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for attempt in range(_TRIES):
        area_draw, ratio_draw, top_draw, left_draw = draws[:, 1 + 4 * attempt : 5 + 4 * attempt].T
        pixels = height * width * (area[0] + (area[1] - area[0]) * area_draw)
        aspect = np.exp(low + (high - low) * ratio_draw)
        tall, wide = np.round(np.sqrt(pixels * aspect)), np.round(np.sqrt(pixels / aspect))
        fits = pending & (tall < height) & (wide < width)
        top = np.floor(top_draw * (height - tall + 1))
        left = np.floor(left_draw * (width - wide + 1))
        box = np.stack([top, left, top + tall, left + wide], axis=1)
        boxes[fits] = box[fits].astype(np.int64)
        pending &= ~fits
    return boxes


@dataclass(config=STRICT)
class RandomErasing(
    Algorithm,
    change_batch=30,
    excludes={"cutout": "both erase a rectangle of each image; use one"},
    acts_on=("image", "label", "mask"),
):
    """Erases boxes of normalized images by zero, the mean colour, or by standard normal noise."""

    probability: Probability
    area: FractionRange
    ratio: PositiveRange
    fill: Literal["zero", "noise"]

    def set_up(self) -> None:
        # note: noise has a seed of the step
        self.repeats_changes = self.fill != "noise"

    def change_batch(self, batch: Batch, size: Size) -> Transform:
        moment = batch.moment
        draws = randomness.uniforms(moment.seed, "random_erasing", moment.epoch, batch.indices, 1 + 4 * _TRIES)
        boxes = random_boxes(draws, self.probability, self.area, self.ratio, *size)
        return Transform([boxes], self._erase)

    def _erase(self, batch: Batch, boxes: Tensor) -> Batch:
        images, moment = batch.inputs, batch.moment
        fill: Tensor | float = 0.0
        if self.fill == "noise":
            generator = torch.Generator(images.device)
            # note: torch takes seeds below 2^63
            generator.manual_seed(randomness.key(moment.seed, "random_erasing", moment.step, moment.rank) >> 1)
            fill = torch.empty_like(images).normal_(generator=generator)
        return replace(batch, inputs=erase(images, boxes, fill))
