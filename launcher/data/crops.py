"""Random resized crops and flips keyed by the sample, and the pixels they give; imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from PIL import Image

from launcher import randomness
from launcher.config import schema

_TRIES = 10
_DRAWS = 4 * _TRIES + 1
_RESAMPLING = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


@dataclass(frozen=True)
class Crop:
    """A box in pixels of the stored picture, and whether it is mirrored."""

    top: int
    left: int
    height: int
    width: int
    flip: bool


def random_crop(image: schema.Image, height: int, width: int, *, seed: int, epoch: int, index: int) -> Crop:
    """Draw the random resized crop and flip of one sample in one epoch (Szegedy et al. 2015).

    Ten tries of an area uniform in `scale` and an aspect ratio log-uniform in `ratio`, then the largest centred box
    within the ratios.
    """
    draws = randomness.uniforms(seed, "crop", epoch, np.array([index]), _DRAWS)[0]
    flip = bool(draws[-1] < image.flip)
    low, high = (math.log(ratio) for ratio in image.ratio)
    for area_draw, ratio_draw, top_draw, left_draw in draws[:-1].reshape(_TRIES, 4):
        area = height * width * (image.scale[0] + (image.scale[1] - image.scale[0]) * area_draw)
        aspect = math.exp(low + (high - low) * ratio_draw)
        crop_width, crop_height = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            top = int(top_draw * (height - crop_height + 1))
            left = int(left_draw * (width - crop_width + 1))
            return Crop(top, left, crop_height, crop_width, flip)
    return _centred(image, height, width, flip)


def _centred(image: schema.Image, height: int, width: int, flip: bool) -> Crop:
    aspect = min(max(width / height, image.ratio[0]), image.ratio[1])
    crop_width = min(width, round(height * aspect))
    crop_height = min(height, round(width / aspect))
    return Crop((height - crop_height) // 2, (width - crop_width) // 2, crop_height, crop_width, flip)


def cut(picture: Image.Image, crop: Crop, side: int, interpolation: str) -> np.ndarray:
    """Cut and resize to uint8 [side, side, 3]."""
    box = (crop.left, crop.top, crop.left + crop.width, crop.top + crop.height)
    # note: cropping first keeps the resampling filter inside the box, as torchvision's resized_crop does
    resized = picture.crop(box).resize((side, side), _RESAMPLING[interpolation])
    pixels = np.asarray(resized)
    return np.ascontiguousarray(pixels[:, ::-1]) if crop.flip else np.array(pixels)


def centre_cut(picture: Image.Image, resize: int, side: int, interpolation: str) -> np.ndarray:
    """Resize the short side, then cut the centre: uint8 [side, side, 3]."""
    width, height = picture.size
    short, long = min(width, height), max(width, height)
    size = (resize, int(resize * long / short)) if width <= height else (int(resize * long / short), resize)
    resized = picture.resize(size, _RESAMPLING[interpolation]) if size != picture.size else picture
    top, left = round((size[1] - side) / 2.0), round((size[0] - side) / 2.0)
    return np.array(resized.crop((left, top, left + side, top + side)))
