"""TrivialAugment (Müller & Hutter 2021), its wide space: one random operation of random strength a picture."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor, nn

from launcher import randomness
from launcher.algorithms.base import Algorithm
from launcher.algorithms.randaugment import Choice, apply
from launcher.data.batch import Batch

NAMES = (
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
    "rotate",
    "brightness",
    "color",
    "contrast",
    "sharpness",
    "posterize",
    "solarize",
    "autocontrast",
    "equalize",
)
# Greatest magnitude, of either sign; enhancements deviate from 1 by it.
_SIGNED = {"shear_x": 0.99, "shear_y": 0.99, "translate_x": 32.0, "translate_y": 32.0, "rotate": 135.0}
_ENHANCE = 0.99


def choose(indices: np.ndarray, *, bins: int, seed: int, epoch: int) -> Choice:
    """Draw operation, strength and sign for the sample indices [B]; number len(NAMES) is no operation."""
    which, strength, sign = randomness.uniforms(seed, "trivialaugment", epoch, indices, 3).T
    operations = np.floor(which * (len(NAMES) + 1)).astype(np.int64)
    part = np.floor(strength * bins) / (bins - 1)
    signs = np.where(sign < 0.5, 1.0, -1.0)
    tables = np.stack([*(magnitudes(name, part, signs) for name in NAMES), np.zeros_like(part)])
    return Choice(operations, tables[operations, np.arange(len(operations))])


def magnitudes(name: str, part: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """An operation's magnitudes [B] for strengths [B] in [0, 1] and signs [B]."""
    if name in _SIGNED:
        return np.asarray(signs * part * _SIGNED[name])
    if name in ("brightness", "color", "contrast", "sharpness"):
        return np.asarray(1 + signs * part * _ENHANCE)
    if name == "posterize":
        return np.asarray(8 - np.round(part * 6))
    if name == "solarize":
        return np.asarray(255 * (1 - part))
    return np.zeros_like(part)


class TrivialAugment(Algorithm):
    """One operation a picture, or none, on the device for the whole batch."""

    def change_batch(self, batch: Batch, model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> Batch:
        choice = choose(batch.indices, bins=self.values.bins, seed=batch.moment.seed, epoch=batch.moment.epoch)
        return batch.having(images=apply(batch.images, choice, NAMES))


ALGORITHM = TrivialAugment
