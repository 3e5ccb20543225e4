"""TrivialAugment (Müller & Hutter 2021), its wide space: one random operation of random strength an image."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from launcher import randomness
from launcher.algorithms.base import Algorithm, Context, Size, Transform
from launcher.algorithms.image_operations import Choice, apply
from launcher.algorithms.randaugment import chosen
from launcher.config.batch_algorithms import TrivialAugmentConfig
from launcher.data.batch import Batch

# Greatest magnitude, of either sign; enhancements deviate from 1 by it.
_ENHANCEMENTS = ("brightness", "color", "contrast", "sharpness")
_MOST = {
    **{"shear_x": 0.99, "shear_y": 0.99, "translate_x": 32.0, "translate_y": 32.0, "rotate": 135.0},
    **dict.fromkeys(_ENHANCEMENTS, 0.99),
}
NAMES = (*_MOST, "posterize", "solarize", "autocontrast", "equalize")


def space(bins: int) -> dict[str, np.ndarray]:
    """Each operation's magnitudes float64 [2, bins], of either sign: torchvision's TrivialAugmentWide of 2021.

    Computed in float32 as there, which decides on pixels where a magnitude is cut to a whole number.
    """

    def strengths(first: float, last: float) -> np.ndarray:
        return torch.linspace(first, last, bins).double().numpy()

    magnitudes = {name: np.zeros((2, bins)) for name in NAMES}
    magnitudes["posterize"] += 8 - np.round(np.arange(bins) / (bins - 1) * 6)
    # note: the first whole value at or above the threshold, which float32 would round
    magnitudes["solarize"] += np.ceil(strengths(255, 0))
    for name, most in _MOST.items():
        sizes = np.trunc(strengths(0, most)) if name.startswith("translate") else strengths(0, most)
        magnitudes[name] += np.stack([sizes, -sizes]) + (name in _ENHANCEMENTS)
    return magnitudes


def choose(magnitudes: dict[str, np.ndarray], indices: np.ndarray, *, seed: int, epoch: int) -> Choice:
    """Draw operation, strength and sign from a `space` for the sample indices [B]."""
    which, strength, sign = randomness.uniforms(seed, "trivialaugment", epoch, indices, 3).T
    operations = np.floor(which * (len(NAMES) + 1)).astype(np.int64)
    signs, bins = (sign >= 0.5).astype(np.int64), len(magnitudes["rotate"][0])
    places = np.floor(strength * bins).astype(np.int64)
    return chosen(operations, {name: magnitudes[name][signs, places] for name in NAMES})


class TrivialAugment(Algorithm[TrivialAugmentConfig]):
    """One operation an image, or none, on the device for the whole batch."""

    def __init__(self, values: TrivialAugmentConfig, context: Context):
        super().__init__(values, context)
        self._space = space(values.bins)

    def change_batch(self, batch: Batch, size: Size) -> Transform:
        choice = choose(self._space, batch.indices, seed=batch.moment.seed, epoch=batch.moment.epoch)
        arrays = choice.arrays(NAMES, *size, fixed=self.context.fixed_shapes(batch.images.device))
        return Transform(arrays, lambda batch, *drawn: replace(batch, images=apply(batch.images, drawn)))
