"""RandAugment (Cubuk et al. 2020): `depth` random operations an image, drawn from one of five published sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from launcher import randomness
from launcher.algorithms.base import Algorithm, Size, Transform
from launcher.algorithms.cutout import erase, square_boxes
from launcher.algorithms.image_operations import ARRAYS, BLACK, Choice, Colour, apply, operate_with_pillow
from launcher.config.batch_algorithms import RandAugmentConfig
from launcher.data.batch import Batch, constant

_LEVELS = 10
_SAFE = (
    *("autocontrast", "equalize", "posterize", "rotate", "solarize"),
    *("shear_x", "shear_y", "translate_x", "translate_y"),
)
_ENHANCEMENTS = ("color", "contrast", "brightness", "sharpness")
SETS = {
    "all": (*_SAFE, *_ENHANCEMENTS),
    "original": (*_SAFE, *_ENHANCEMENTS),
    "safe": _SAFE,
    "timm_increasing": (*_SAFE, *_ENHANCEMENTS, "invert", "solarize_add"),
    "autoaugment": (*_SAFE, *_ENHANCEMENTS, "invert", "solarize_add", "cutout"),
}
_DRAWS = 4
_GREY = (128, 128, 128)
_PUBLISHED_SIDE = 224  # pixels, for which AutoAugment's magnitudes in pixels are


def choose(values: RandAugmentConfig, indices: np.ndarray, *, seed: int, epoch: int, side: int) -> list[Choice]:
    """Draw `depth` rounds for the sample indices [B]; an image's draws depend on (seed, epoch, index) alone.

    side: of the images in pixels, which translations are parts of.
    """
    draws = randomness.uniforms(seed, "randaugment", epoch, indices, _DRAWS * values.depth)
    rounds = [draws[:, _DRAWS * number : _DRAWS * (number + 1)].T for number in range(values.depth)]
    return [_choice(values, part, side) for part in rounds]


def _choice(values: RandAugmentConfig, draws: np.ndarray, side: int) -> Choice:
    which, level_draw, angle_draw, sign_draw = draws
    names = SETS[values.operations]
    operations = np.floor(which / values.probability * len(names)).clip(max=len(names)).astype(np.int64)
    levels = _levels(values, level_draw, angle_draw)
    signs = np.where(sign_draw < 0.5, -1.0, 1.0)

    def sizes(name: str) -> np.ndarray:
        if values.operations == "timm_increasing":
            return timm_magnitudes(name, levels, signs, side)
        if values.operations == "autoaugment":
            return autoaugment_magnitudes(name, levels, signs, side)
        if values.operations == "all" and name in _ENHANCEMENTS:
            return symmetric_factors(name, values.severity, level_draw, signs)
        return magnitudes(name, levels, signs, side)

    return chosen(operations, [sizes(name) for name in names])


def chosen(operations: np.ndarray, magnitudes: Sequence[np.ndarray] | np.ndarray) -> Choice:
    """From numbers of operations [B] and the magnitudes [B] of every operation of the set."""
    table = np.stack([*magnitudes, np.zeros(len(operations))])
    return Choice(operations, table[operations, np.arange(len(operations))])


def _levels(values: RandAugmentConfig, uniform: np.ndarray, other: np.ndarray) -> np.ndarray:
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
            # note: at level 10 the published code leaves no bit at all, which is a black image
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


def symmetric_factors(name: str, severity: float, uniform: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """An enhancement's factors [B] for uniform draws [B] and signs [B] (MosaicML Composer): as often above 1 as below.

    Uniform in [1, severity] or in [1 - 0.09 severity, 1]; brightness above 1 times 0.75.
    """
    factors = np.where(signs > 0, 1 + uniform * (severity - 1), 1 - uniform * 0.09 * severity)
    return np.where(factors > 1, 0.75 * factors, factors) if name == "brightness" else factors


def timm_magnitudes(name: str, levels: np.ndarray, signs: np.ndarray, side: int) -> np.ndarray:
    """An operation's magnitudes [B] for levels [B] in [0, 10] and signs [B] (timm's `inc1`)."""
    part = levels / _LEVELS
    match name:
        case "rotate":
            return signs * part * 30
        case "translate_x" | "translate_y":
            return signs * part * 0.45 * side
        case "color" | "contrast" | "brightness" | "sharpness":
            return (1 + signs * part * 0.9).clip(0.1)
        case "solarize_add":
            return np.floor(part * 110)
    return magnitudes(name, levels, signs, side)


def autoaugment_magnitudes(name: str, levels: np.ndarray, signs: np.ndarray, side: int) -> np.ndarray:
    """An operation's magnitudes [B] for levels [B] in [0, 10] and signs [B] (AutoAugment's code for TPUs).

    Posterizing and solarizing weaken with the level; cutout's is half its side.
    """
    part = levels / _LEVELS
    match name:
        case "posterize":
            # note: below 2.5 the published code leaves no bit at all, which is a black image
            return np.floor(part * 4).clip(1)
        case "solarize":
            return np.floor(part * 256)
        case "rotate":
            return signs * part * 30
        case "translate_x" | "translate_y":
            return signs * np.floor(part * 100 * side / _PUBLISHED_SIDE)
        case "solarize_add":
            return np.floor(part * 110)
        case "cutout":
            return np.floor(part * 40 * side / _PUBLISHED_SIDE)
    return magnitudes(name, levels, signs, side)


def boxes_of(
    values: RandAugmentConfig, choices: Sequence[Choice], indices: np.ndarray, *, seed: int, epoch: int, side: int
) -> list[np.ndarray]:
    """What each round cuts out of square images, int64 [B, 4] as `erase` takes them; none where no set cuts."""
    names = SETS[values.operations]
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
        moment = batch.moment
        where = {"seed": moment.seed, "epoch": moment.epoch, "side": size[1]}
        choices = choose(self.values, batch.indices, **where)
        names, fixed, fill = SETS[self.values.operations], self.context.fixed_shapes(batch.images.device), self._fill()
        boxes = boxes_of(self.values, choices, batch.indices, **where)

        def augment(batch: Batch, *drawn: Tensor) -> Batch:
            images, cuts = batch.images, drawn[: len(boxes)]
            for turn, start in enumerate(range(len(boxes), len(drawn), ARRAYS)):
                images = apply(images, drawn[start : start + ARRAYS], fill)
                if cuts:
                    images = erase(images, cuts[turn], constant(fill, torch.uint8, images.device))
            return replace(batch, images=images)

        arrays = [array for one in choices for array in one.arrays(names, *size, fixed=fixed)]
        return Transform([*boxes, *arrays], augment)

    def change_image(self, image: np.ndarray, index: int, epoch: int) -> np.ndarray:
        pillow = Image.fromarray(image)
        names = (*SETS[self.values.operations], None)
        where = {"seed": self.context.plan.config.seed, "epoch": epoch, "side": image.shape[1]}
        choices = choose(self.values, np.array([index]), **where)
        boxes = boxes_of(self.values, choices, np.array([index]), **where)
        for turn, choice in enumerate(choices):
            name = names[choice.operations[0]]
            if name == "cutout":
                top, left, bottom, right = boxes[turn][0].tolist()
                pillow.paste(_GREY, (left, top, right, bottom))
            elif name:
                pillow = operate_with_pillow(name, pillow, float(choice.magnitudes[0]), self._fill())
        return np.array(pillow)

    def _fill(self) -> Colour:
        """Black, AutoAugment's grey, or timm's: the mean colour of the data set."""
        if self.values.operations != "timm_increasing":
            return _GREY if self.values.operations == "autoaugment" else BLACK
        red, green, blue = (round(255 * mean) for mean in self.context.plan.config.dataset.mean)
        return red, green, blue
