"""RandAugment (Cubuk et al. 2020), with AugMix's operations and levels: `depth` random operations a picture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from launcher import randomness
from launcher.algorithms import image_operations, pillow_operations
from launcher.algorithms.base import Algorithm
from launcher.config import algorithms as schema
from launcher.data.batch import Batch

_LEVELS = 10
_COLOUR = ("color", "contrast", "brightness", "sharpness")
SETS = {
    "all": tuple(image_operations.OPERATIONS),
    "original": tuple(name for name in image_operations.OPERATIONS if name not in _COLOUR),
}
_DRAWS = 4


@dataclass(frozen=True)
class Choice:
    """What one round does to each of B images: numbers of operations int64 [B] in a set, magnitudes float64 [B]."""

    operations: np.ndarray
    magnitudes: np.ndarray


def choose(values: schema.RandAugment, indices: np.ndarray, *, seed: int, epoch: int, side: int) -> list[Choice]:
    """Draw `depth` rounds for the sample indices [B]; an image's draws depend on (seed, epoch, index) alone.

    side: of the pictures in pixels, which translations are parts of.
    """
    names = SETS[values.operations]
    draws = randomness.uniforms(seed, "randaugment", epoch, indices, _DRAWS * values.depth)
    rounds = [draws[:, _DRAWS * number : _DRAWS * (number + 1)].T for number in range(values.depth)]
    return [_choice(values, names, part, side) for part in rounds]


def _choice(values: schema.RandAugment, names: tuple[str, ...], draws: np.ndarray, side: int) -> Choice:
    which, level_draw, angle_draw, sign_draw = draws
    operations = np.floor(which * len(names)).astype(np.int64)
    levels = _levels(values, level_draw, angle_draw)
    signs = np.where(sign_draw < 0.5, -1.0, 1.0)
    tables = np.stack([magnitudes(name, levels, signs, side) for name in names])
    return Choice(operations, tables[operations, np.arange(len(operations))])


def _levels(values: schema.RandAugment, uniform: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Levels in [0, 10]: U(0.1, severity), N(severity, deviation) by Box & Muller 1958, or the severity itself."""
    levels = np.full_like(uniform, values.severity)
    if values.severity_distribution == "uniform":
        levels = 0.1 + uniform * (values.severity - 0.1)
    elif values.severity_distribution == "normal":
        levels += values.severity_deviation * np.sqrt(-2 * np.log1p(-uniform)) * np.cos(2 * np.pi * other)
    return levels.clip(0, _LEVELS)


def magnitudes(name: str, levels: np.ndarray, signs: np.ndarray, side: int) -> np.ndarray:
    """An operation's magnitudes [B] for levels [B] in [0, 10] and signs [B] of -1 or 1 (AugMix)."""
    part = levels / _LEVELS
    match name:
        case "posterize":
            # note: at level 10 the published code leaves no bit at all, which is a black picture
            return (4 - np.floor(part * 4)).clip(1)
        case "solarize":
            return 256 - np.floor(part * 256)
        case "rotate":
            return signs * np.floor(part * 30)
        case "shear_x" | "shear_y":
            return signs * part * 0.3
        case "translate_x" | "translate_y":
            return signs * np.floor(part * side / 3)
        case "color" | "contrast" | "brightness" | "sharpness":
            return part * 1.8 + 0.1
    return np.zeros_like(levels)


def apply(images: Tensor, choice: Choice, names: tuple[str, ...]) -> Tensor:
    """One round on uint8 images [B, 3, H, W]: each operation runs once, on the images that drew it."""
    result = images.clone()
    for number, name in enumerate(names):
        rows = np.flatnonzero(choice.operations == number)
        if len(rows):
            at = torch.from_numpy(rows).to(images.device)
            sizes = torch.from_numpy(choice.magnitudes[rows].astype(np.float32)).to(images.device)
            result[at] = image_operations.OPERATIONS[name](images[at], sizes)
    return result


class RandAugment(Algorithm):
    """On the device for the whole batch, or with `where: loader` picture by picture; the same draws either way."""

    def change_batch(self, batch: Batch, model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> Batch:
        images, moment = batch.images, batch.moment
        for choice in choose(self.values, batch.indices, seed=moment.seed, epoch=moment.epoch, side=images.shape[3]):
            images = apply(images, choice, SETS[self.values.operations])
        return batch.having(images=images)

    def change_image(self, image: np.ndarray, index: int, epoch: int) -> np.ndarray:
        picture = Image.fromarray(image)
        names = SETS[self.values.operations]
        seed = self.setting.plan.config.seed
        for choice in choose(self.values, np.array([index]), seed=seed, epoch=epoch, side=image.shape[1]):
            name = names[choice.operations[0]]
            picture = pillow_operations.OPERATIONS[name](picture, float(choice.magnitudes[0]))
        return np.array(picture)


ALGORITHM = RandAugment
