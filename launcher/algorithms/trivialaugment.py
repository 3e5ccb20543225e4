"""TrivialAugment (Müller & Hutter 2021), wide space: apply one random operation of random strength to each image."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from launcher.algorithms.base import Algorithm, Size, Transform
from launcher.algorithms.image_operations import Choice, apply
from launcher.algorithms.randaugment import COMPLETE, OF_RGB, chosen
from launcher.compute import randomness
from launcher.config.fields import STRICT
from launcher.data.batch import Batch
from launcher.later import torch

# Largest magnitude of either sign; for enhancements the largest deviation from 1.
_ENHANCEMENTS = ("brightness", "color", "contrast", "sharpness")
_LARGEST = {
    **{"shear_x": 0.99, "shear_y": 0.99, "translate_x": 32.0, "translate_y": 32.0, "rotate": 135.0},
    **dict.fromkeys(_ENHANCEMENTS, 0.99),
}
NAMES = (*_LARGEST, "posterize", "solarize", "autocontrast", "equalize")


def space(bins: int) -> dict[str, np.ndarray]:
    """Return each operation's magnitudes float64 [2, bins] of either sign, as torchvision's TrivialAugmentWide of 2021.

    Computed in float32 as there, since truncation to whole numbers depends on the precision.
    """

    def strengths(first: float, last: float) -> np.ndarray:
        return torch.linspace(first, last, bins).double().numpy()

    magnitudes = {name: np.zeros((2, bins)) for name in NAMES}
    magnitudes["posterize"] += 8 - np.round(np.arange(bins) / (bins - 1) * 6)
    # note: the first whole value at or above the threshold
    magnitudes["solarize"] += np.ceil(strengths(255, 0))
    for name, largest in _LARGEST.items():
        values = np.trunc(strengths(0, largest)) if name.startswith("translate") else strengths(0, largest)
        magnitudes[name] += np.stack([values, -values]) + (name in _ENHANCEMENTS)
    return magnitudes


def choose(magnitudes: dict[str, np.ndarray], indices: np.ndarray, *, seed: int, epoch: int) -> Choice:
    """Draw operation, strength and sign from a `space` for the sample indices [B]."""
    which, strength, sign = randomness.uniforms(seed, "trivialaugment", epoch, indices, 3).T
    operations = np.floor(which * (len(NAMES) + 1)).astype(np.int64)
    signs, bins = (sign >= 0.5).astype(np.int64), len(magnitudes["rotate"][0])
    levels = np.floor(strength * bins).astype(np.int64)
    return chosen(operations, {name: magnitudes[name][signs, levels] for name in NAMES})


@dataclass(config=STRICT)
class TrivialAugment(Algorithm, change_batch=-30, excludes={"randaugment": COMPLETE}, acts_on=("image", "label")):
    """Applies one operation or none to each image, for the whole batch on the device."""

    lacking = MappingProxyType({"mps": "float64"})
    needs_rgb = OF_RGB

    bins: Annotated[int, Field(ge=2)]

    def set_up(self) -> None:
        self._space = space(self.bins)

    def change_batch(self, batch: Batch, size: Size) -> Transform:
        choice = choose(self._space, batch.indices, seed=batch.moment.seed, epoch=batch.moment.epoch)
        arrays = choice.arrays(NAMES, *size, fixed=self.context.fixed_shapes(batch.inputs.device))
        return Transform(arrays, lambda batch, *sent: replace(batch, inputs=apply(batch.inputs, sent)))
