"""RandAugment (Cubuk et al. 2020): `depth` random operations an image, drawn from one of five published sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from launcher import randomness
from launcher.algorithms.base import Algorithm, Size, Transform
from launcher.algorithms.cutout import erase, square_boxes
from launcher.algorithms.image_operations import ARRAYS, BLACK, Choice, Colour, apply
from launcher.config.batch_algorithms import RandAugmentConfig
from launcher.data.batch import Batch, constant

# An operation's magnitudes [B] for levels [B] in parts of the highest, signs [B] of -1 or 1, and the side in pixels.
Magnitudes = Callable[[np.ndarray, np.ndarray, int], np.ndarray]

_LEVELS = 10
_DRAWS = 4
_GREY = (128, 128, 128)
_PUBLISHED_SIDE = 224  # pixels, for which AutoAugment's magnitudes in pixels are
_ENHANCEMENTS = ("color", "contrast", "brightness", "sharpness")


def _none(level: np.ndarray, sign: np.ndarray, side: int) -> np.ndarray:
    return np.zeros_like(level)


# AugMix's, without and with the enhancements.
_SAFE: dict[str, Magnitudes] = {
    "autocontrast": _none,
    "equalize": _none,
    # note: at level 10 the published code leaves no bit at all, which is a black image
    "posterize": lambda level, *_: (4 - np.floor(level * 4)).clip(1),
    "rotate": lambda level, sign, _: sign * np.floor(level * 30),
    "solarize": lambda level, *_: 256 - np.floor(level * 256),
    **dict.fromkeys(("shear_x", "shear_y"), lambda level, sign, _: sign * level * 0.3),
    **dict.fromkeys(("translate_x", "translate_y"), lambda level, sign, side: sign * np.floor(level * side / 3)),
}
_ORIGINAL: dict[str, Magnitudes] = {**_SAFE, **dict.fromkeys(_ENHANCEMENTS, lambda level, *_: level * 1.8 + 0.1)}
# timm's `inc1`.
_TIMM: dict[str, Magnitudes] = {
    **_ORIGINAL,
    "rotate": lambda level, sign, _: sign * level * 30,
    **dict.fromkeys(("translate_x", "translate_y"), lambda level, sign, side: sign * level * 0.45 * side),
    **dict.fromkeys(_ENHANCEMENTS, lambda level, sign, _: (1 + sign * level * 0.9).clip(0.1)),
    "invert": _none,
    "solarize_add": lambda level, *_: np.floor(level * 110),
}
# AutoAugment's code for TPUs: posterizing and solarizing weaken with the level; cutout's is half its side.
_AUTOAUGMENT: dict[str, Magnitudes] = {
    **_ORIGINAL,
    # note: below 2.5 the published code leaves no bit at all, which is a black image
    "posterize": lambda level, *_: np.floor(level * 4).clip(1),
    "rotate": _TIMM["rotate"],
    "solarize": lambda level, *_: np.floor(level * 256),
    **dict.fromkeys(
        ("translate_x", "translate_y"),
        lambda level, sign, side: sign * np.floor(level * 100 * side / _PUBLISHED_SIDE),
    ),
    "invert": _none,
    "solarize_add": _TIMM["solarize_add"],
    "cutout": lambda level, _, side: np.floor(level * 40 * side / _PUBLISHED_SIDE),
}
SETS = {"all": _ORIGINAL, "original": _ORIGINAL, "safe": _SAFE, "timm_increasing": _TIMM, "autoaugment": _AUTOAUGMENT}


def choose(values: RandAugmentConfig, indices: np.ndarray, *, seed: int, epoch: int, side: int) -> list[Choice]:
    """Draw `depth` rounds for the sample indices [B]; an image's draws depend on (seed, epoch, index) alone.

    side: of the images in pixels, which translations are parts of.
    """
    draws = randomness.uniforms(seed, "randaugment", epoch, indices, _DRAWS * values.depth)
    rounds = [draws[:, _DRAWS * number : _DRAWS * (number + 1)].T for number in range(values.depth)]
    return [_choice(values, part, side) for part in rounds]


def _choice(values: RandAugmentConfig, draws: np.ndarray, side: int) -> Choice:
    which, level_draw, angle_draw, sign_draw = draws
    operations = SETS[values.operations]
    numbers = np.floor(which / values.probability * len(operations)).clip(max=len(operations)).astype(np.int64)
    signs = np.where(sign_draw < 0.5, -1.0, 1.0)
    drawn = magnitudes(operations, _levels(values, level_draw, angle_draw), signs, side)
    if values.operations == "all":
        drawn |= {name: symmetric_factors(name, values.severity, level_draw, signs) for name in _ENHANCEMENTS}
    return chosen(numbers, drawn)


def magnitudes(
    operations: Mapping[str, Magnitudes], levels: np.ndarray, signs: np.ndarray, side: int
) -> dict[str, np.ndarray]:
    """The magnitudes [B] of every operation of a set, for levels [B] in [0, 10] and signs [B] of -1 or 1."""
    return {name: make(levels / _LEVELS, signs, side) for name, make in operations.items()}


def chosen(operations: np.ndarray, magnitudes: Mapping[str, np.ndarray]) -> Choice:
    """From numbers of operations [B] and the magnitudes [B] of every operation of the set."""
    table = np.stack([*magnitudes.values(), np.zeros(len(operations))])
    return Choice(operations, table[operations, np.arange(len(operations))])


def _levels(values: RandAugmentConfig, uniform: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Levels in [0, 10]: U(0.1, severity), N(severity, deviation) by Box & Muller 1958, or the severity itself."""
    levels = np.full_like(uniform, values.severity)
    if values.severity_distribution == "uniform":
        levels = 0.1 + uniform * (values.severity - 0.1)
    elif values.severity_distribution == "normal":
        levels += values.severity_deviation * np.sqrt(-2 * np.log1p(-uniform)) * np.cos(2 * np.pi * other)
    return levels.clip(0, _LEVELS)


def symmetric_factors(name: str, severity: float, uniform: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """An enhancement's factors [B] for uniform draws [B] and signs [B] (MosaicML Composer): as often above 1 as below.

    Uniform in [1, severity] or in [1 - 0.09 severity, 1]; brightness above 1 times 0.75.
    """
    factors = np.where(signs > 0, 1 + uniform * (severity - 1), 1 - uniform * 0.09 * severity)
    return np.where(factors > 1, 0.75 * factors, factors) if name == "brightness" else factors


def boxes_of(
    values: RandAugmentConfig, choices: Sequence[Choice], indices: np.ndarray, *, seed: int, epoch: int, side: int
) -> list[np.ndarray]:
    """What each round cuts out of square images, int64 [B, 4] as `erase` takes them; none where no set cuts."""
    names = list(SETS[values.operations])
    if "cutout" not in names:
        return []
    centres = randomness.uniforms(seed, "randaugment cutout", epoch, indices, 2 * values.depth)
    halves = [np.where(one.operations == names.index("cutout"), one.magnitudes, 0).astype(np.int64) for one in choices]
    return [
        square_boxes(centres[:, 2 * turn : 2 * turn + 2], 2 * half[:, None], side, side)
        for turn, half in enumerate(halves)
    ]


class RandAugment(Algorithm[RandAugmentConfig]):
    """On the device for the whole batch, or with `where: loader` image by image; the same draws either way."""

    def change_batch(self, batch: Batch, size: Size) -> Transform:
        fixed = self.context.fixed_shapes(batch.images.device)
        arrays = self._arrays(batch.indices, size, seed=batch.moment.seed, epoch=batch.moment.epoch, fixed=fixed)
        return Transform(arrays, lambda batch, *drawn: replace(batch, images=self._augment(batch.images, drawn)))

    def change_image(self, image: np.ndarray, index: int, epoch: int) -> np.ndarray:
        size, seed = (image.shape[0], image.shape[1]), self.context.plan.config.seed
        arrays = self._arrays(np.array([index]), size, seed=seed, epoch=epoch, fixed=False)
        images = torch.from_numpy(image)[None].permute(0, 3, 1, 2)
        return self._augment(images, [*map(torch.from_numpy, arrays)])[0].permute(1, 2, 0).numpy()

    def _arrays(self, indices: np.ndarray, size: Size, *, seed: int, epoch: int, fixed: bool) -> list[np.ndarray]:
        """What `_augment` needs on the device: of each round a choice's arrays, then its boxes if the set cuts any."""
        where = {"seed": seed, "epoch": epoch, "side": size[1]}
        choices = choose(self.values, indices, **where)
        boxes = boxes_of(self.values, choices, indices, **where)
        names, arrays = list(SETS[self.values.operations]), []
        for turn, choice in enumerate(choices):
            arrays += [*choice.arrays(names, *size, fixed=fixed), *boxes[turn : turn + 1]]
        return arrays

    def _augment(self, images: Tensor, drawn: Sequence[Tensor]) -> Tensor:
        """All rounds on uint8 images [B, 3, H, W]."""
        fill = self._fill()
        each = ARRAYS + ("cutout" in SETS[self.values.operations])
        for start in range(0, len(drawn), each):
            images = apply(images, drawn[start : start + ARRAYS], fill)
            for boxes in drawn[start + ARRAYS : start + each]:
                images = erase(images, boxes, constant(fill, torch.uint8, images.device))
        return images

    def _fill(self) -> Colour:
        """Black, AutoAugment's grey, or timm's: the mean colour of the data set."""
        if self.values.operations != "timm_increasing":
            return _GREY if self.values.operations == "autoaugment" else BLACK
        red, green, blue = (round(255 * mean) for mean in self.context.plan.config.dataset.mean)
        return red, green, blue
