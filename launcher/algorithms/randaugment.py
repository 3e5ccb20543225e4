"""RandAugment (Cubuk et al. 2020): apply `depth` random operations of one of five published sets to each image."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Literal, Self

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from launcher.algorithms.base import Algorithm, Size, Transform
from launcher.algorithms.cutout import erase, square_boxes
from launcher.algorithms.image_operations import ARRAYS, BLACK, Choice, Colour, apply
from launcher.compute import randomness
from launcher.config.declaration import RunPlan
from launcher.config.fields import STRICT, NotNegative
from launcher.data.batch import Batch, Moment, constant
from launcher.errors import Problem
from launcher.later import torch

if TYPE_CHECKING:
    from torch import Tensor

Severity = Annotated[float, Field(ge=0, le=10)]
# Why it cannot be combined with another one.
COMPLETE = "both are complete augmentation policies; use one"
OF_RGB = "its operations change colours of 8-bit RGB"


# Computes magnitudes [B] from levels [B] as fractions of the highest, signs [B] of -1 or 1, and the size in pixels.
Magnitudes = Callable[[np.ndarray, np.ndarray, int], np.ndarray]

_LEVELS = 10
_DRAWS = 4
_GREY = (128, 128, 128)
_PUBLISHED_SIZE = 224  # image size for AutoAugment's magnitudes in pixels
_ENHANCEMENTS = ("color", "contrast", "brightness", "sharpness")


def _none(level: np.ndarray, sign: np.ndarray, size: int) -> np.ndarray:
    return np.zeros_like(level)


# AugMix's operations without the enhancements, and with them.
_SAFE: dict[str, Magnitudes] = {
    "autocontrast": _none,
    "equalize": _none,
    "posterize": lambda level, *_: 4 - np.floor(level * 4),
    "rotate": lambda level, sign, _: sign * np.floor(level * 30),
    "solarize": lambda level, *_: 256 - np.floor(level * 256),
    **dict.fromkeys(("shear_x", "shear_y"), lambda level, sign, _: sign * level * 0.3),
    **dict.fromkeys(("translate_x", "translate_y"), lambda level, sign, size: sign * np.floor(level * size / 3)),
}
_ORIGINAL: dict[str, Magnitudes] = {**_SAFE, **dict.fromkeys(_ENHANCEMENTS, lambda level, *_: level * 1.8 + 0.1)}
# timm's `inc1`.
_TIMM: dict[str, Magnitudes] = {
    **_ORIGINAL,
    "rotate": lambda level, sign, _: sign * level * 30,
    **dict.fromkeys(("translate_x", "translate_y"), lambda level, sign, size: sign * level * 0.45 * size),
    **dict.fromkeys(_ENHANCEMENTS, lambda level, sign, _: (1 + sign * level * 0.9).clip(0.1)),
    "invert": _none,
    "solarize_add": lambda level, *_: np.floor(level * 110),
}
# AutoAugment's code for TPUs: higher levels posterize and solarize less; cutout's magnitude is half its size.
_AUTOAUGMENT: dict[str, Magnitudes] = {
    **_ORIGINAL,
    # note: no bits below level 2.5, which makes the image black, as published
    "posterize": lambda level, *_: np.floor(level * 4),
    "rotate": _TIMM["rotate"],
    "solarize": lambda level, *_: np.floor(level * 256),
    **dict.fromkeys(
        ("translate_x", "translate_y"), lambda level, sign, size: sign * np.floor(level * 100 * size / _PUBLISHED_SIZE)
    ),
    "invert": _none,
    "solarize_add": _TIMM["solarize_add"],
    "cutout": lambda level, _, size: np.floor(level * 40 * size / _PUBLISHED_SIZE),
}
SETS = {"all": _ORIGINAL, "original": _ORIGINAL, "safe": _SAFE, "timm_increasing": _TIMM, "autoaugment": _AUTOAUGMENT}


def choose(values: RandAugment, indices: np.ndarray, *, seed: int, epoch: int, size: int) -> list[Choice]:
    """Draw `depth` rounds for the sample indices [B]; an image's draws only depend on (seed, epoch, index).

    size: of the images in pixels, for translations.
    """
    draws = randomness.uniforms(seed, "randaugment", epoch, indices, _DRAWS * values.depth)
    rounds = [draws[:, _DRAWS * number : _DRAWS * (number + 1)].T for number in range(values.depth)]
    return [_choice(values, one_round, size) for one_round in rounds]


def _choice(values: RandAugment, draws: np.ndarray, size: int) -> Choice:
    assert not isinstance(values.severity, list)
    which, level_draw, angle_draw, sign_draw = draws
    operations = SETS[values.operations]
    numbers = np.floor(which / values.probability * len(operations)).clip(max=len(operations)).astype(np.int64)
    signs = np.where(sign_draw < 0.5, -1.0, 1.0)
    drawn = magnitudes(operations, _levels(values, level_draw, angle_draw), signs, size)
    if values.operations == "all":
        drawn |= {name: symmetric_factors(name, values.severity, level_draw, signs) for name in _ENHANCEMENTS}
    return chosen(numbers, drawn)


def magnitudes(
    operations: Mapping[str, Magnitudes], levels: np.ndarray, signs: np.ndarray, size: int
) -> dict[str, np.ndarray]:
    """Return the magnitudes [B] of every operation of a set, for levels [B] in [0, 10] and signs [B] of -1 or 1."""
    return {name: make(levels / _LEVELS, signs, size) for name, make in operations.items()}


def chosen(operations: np.ndarray, magnitudes: Mapping[str, np.ndarray]) -> Choice:
    """Return the choice of operations [B], given the magnitudes [B] of every operation of the set."""
    table = np.stack([*magnitudes.values(), np.zeros(len(operations))])
    return Choice(operations, table[operations, np.arange(len(operations))])


def _levels(values: RandAugment, uniform: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return levels in [0, 10]: U(0.1, severity), N(severity, deviation) by Box & Muller 1958, or the severity."""
    assert not isinstance(values.severity, list)
    levels = np.full_like(uniform, values.severity)
    if values.severity_distribution == "uniform":
        levels = 0.1 + uniform * (values.severity - 0.1)
    elif values.severity_distribution == "normal":
        levels += values.severity_deviation * np.sqrt(-2 * np.log1p(-uniform)) * np.cos(2 * np.pi * other)
    return levels.clip(0, _LEVELS)


def symmetric_factors(name: str, severity: float, uniform: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Return an enhancement's factors [B] for uniform draws [B] and signs [B], as MosaicML Composer does.

    They are uniform in [1, severity] or [1 - 0.09 severity, 1] by sign; brightness above 1 is multiplied by 0.75.
    """
    factors = np.where(signs > 0, 1 + uniform * (severity - 1), 1 - uniform * 0.09 * severity)
    return np.where(factors > 1, 0.75 * factors, factors) if name == "brightness" else factors


@dataclass(config=STRICT)
class RandAugment(Algorithm, change_image=10, change_batch=-40, acts_on=("image", "label")):
    """Augments whole batches on the device, or single images with `where: loader`, with the same draws.

    A list of severities has one for each of equal parts of the run.
    """

    lacking = MappingProxyType({"mps": "float64"})
    needs_rgb = OF_RGB

    severity: Severity | Annotated[list[Severity], Field(min_length=2)]
    depth: Annotated[int, Field(ge=0)]
    operations: Literal["all", "original", "safe", "timm_increasing", "autoaugment"]
    probability: Annotated[float, Field(gt=0, le=1)]
    severity_distribution: Literal["uniform", "normal", "fixed"]
    severity_deviation: NotNegative
    where: Literal["device", "loader"]

    def place(self, point: str) -> int | None:
        acts = (point == "change_image") == (self.where == "loader")
        return super().place(point) if acts else None

    def at_step(self, plan: RunPlan, step: int) -> Self:
        """Return the values of a step, with one severity."""
        return (
            replace(self, severity=self.following(plan, step)["severity"]) if isinstance(self.severity, list) else self
        )

    def following(self, plan: RunPlan, step: int) -> Mapping[str, float]:
        if not isinstance(self.severity, list):
            return {}
        return {"severity": self.severity[plan.part(step, len(self.severity))]}

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        if isinstance(self.severity, list) and self.where == "loader":
            message = "needs where=device, since loader workers do not know the step"
            yield Problem(message, "severity", self.severity)

    @classmethod
    def advice(cls, values: Self | None, bound: Literal["data", "step"]) -> str | None:
        if bound == "data" and values is not None and values.where == "loader":
            return "algorithms.randaugment.where=device: augments whole batches on the device"
        return None

    def change_batch(self, batch: Batch, size: Size) -> Transform:
        fixed = self.context.fixed_shapes(batch.inputs.device)
        values, moment = self.at_step(self.context.plan, batch.moment.step), batch.moment
        arrays = self._arrays(values, batch.indices, size, seed=moment.seed, epoch=moment.epoch, fixed=fixed)
        return Transform(arrays, lambda batch, *sent: replace(batch, inputs=self._augment(batch.inputs, sent)))

    def change_image(self, image: np.ndarray, index: int, moment: Moment) -> np.ndarray:
        size, indices = (image.shape[0], image.shape[1]), np.array([index])
        arrays = self._arrays(self, indices, size, seed=moment.seed, epoch=moment.epoch, fixed=False)
        images = torch.from_numpy(image)[None].permute(0, 3, 1, 2)
        return self._augment(images, [*map(torch.from_numpy, arrays)])[0].permute(1, 2, 0).numpy()

    def _arrays(
        self, values: RandAugment, indices: np.ndarray, size: Size, *, seed: int, epoch: int, fixed: bool
    ) -> list[np.ndarray]:
        """Return the arrays of `_augment`: those of each round's choice, then its boxes if the set has cutout."""
        names, arrays = list(SETS[values.operations]), []
        draws = 2 * values.depth * ("cutout" in names)
        centres = randomness.uniforms(seed, "randaugment cutout", epoch, indices, draws)
        for number, choice in enumerate(choose(values, indices, seed=seed, epoch=epoch, size=min(size))):
            arrays += choice.arrays(names, *size, fixed=fixed)
            if "cutout" in names:
                halves = np.where(choice.operations == names.index("cutout"), choice.magnitudes, 0).astype(np.int64)
                centre = centres[:, 2 * number : 2 * number + 2]
                arrays.append(square_boxes(centre, 2 * halves[:, None], *size))
        return arrays

    def _augment(self, images: Tensor, arrays: Sequence[Tensor]) -> Tensor:
        """Apply all rounds to uint8 images [B, 3, H, W]."""
        fill = self._fill()
        count = ARRAYS + ("cutout" in SETS[self.operations])
        for start in range(0, len(arrays), count):
            images = apply(images, arrays[start : start + ARRAYS], fill)
            for boxes in arrays[start + ARRAYS : start + count]:
                images = erase(images, boxes, constant(fill, torch.uint8, images.device))
        return images

    def _fill(self) -> Colour:
        """Return the colour outside of the image: black, AutoAugment's grey, or the data set's mean as in timm."""
        if self.operations != "timm_increasing":
            return _GREY if self.operations == "autoaugment" else BLACK
        red, green, blue = (round(255 * mean) for mean in self.context.plan.config.dataset.normalization[0])
        return red, green, blue
