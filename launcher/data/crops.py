"""Random resized crops and flips keyed by the sample, and centre crops; imports no torch."""

from __future__ import annotations

import math

import numpy as np
from PIL import Image

from launcher import randomness
from launcher.config import schema

_TRIES = 10
_DRAWS = 4 * _TRIES + 1
_MOST_ASPECT = 50
_RESAMPLING = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


# top, left, height and width in pixels of the stored image, and 1 if it is mirrored
Box = tuple[int, int, int, int, int]


def random_crop(image: schema.Image, height: int, width: int, *, seed: int, epoch: int, index: int) -> Box:
    """Draw the random resized crop and flip of one sample in one epoch."""
    sizes = np.array([height]), np.array([width])
    (box,) = random_crops(image, *sizes, seed=seed, epoch=epoch, indices=np.array([index])).tolist()
    return tuple(box)


def random_crops(
    image: schema.Image, heights: np.ndarray, widths: np.ndarray, *, seed: int, epoch: int, indices: np.ndarray
) -> np.ndarray:
    """Draw the random resized crops and flips of some samples in one epoch (Szegedy et al. 2015).

    Tries ten times an area uniform in `scale` and an aspect ratio log-uniform in `ratio`, then the largest centred box
    within the ratios. Returns int64 [N, 5]: top, left, height, width, and 1 where the sample is mirrored.
    """
    draws = randomness.uniforms(seed, "crop", epoch, indices, _DRAWS)
    low, high = (math.log(ratio) for ratio in image.ratio)
    heights, widths = np.asarray(heights, np.int64)[:, None], np.asarray(widths, np.int64)[:, None]
    area_draw, ratio_draw, top_draw, left_draw = draws[:, :-1].reshape(len(draws), _TRIES, 4).transpose(2, 0, 1)
    areas = heights * widths * (image.scale[0] + (image.scale[1] - image.scale[0]) * area_draw)
    aspects = np.exp(low + (high - low) * ratio_draw)
    crop_widths = np.rint(np.sqrt(areas * aspects)).astype(np.int64)
    crop_heights = np.rint(np.sqrt(areas / aspects)).astype(np.int64)
    fits = (crop_widths > 0) & (crop_widths <= widths) & (crop_heights > 0) & (crop_heights <= heights)
    tops = (top_draw * (heights - crop_heights + 1)).astype(np.int64)
    lefts = (left_draw * (widths - crop_widths + 1)).astype(np.int64)
    tries = np.stack([tops, lefts, crop_heights, crop_widths], axis=2)
    boxes = tries[np.arange(len(tries)), fits.argmax(axis=1)]
    for number in np.flatnonzero(~fits.any(axis=1)):
        boxes[number] = _centred(image, int(heights[number, 0]), int(widths[number, 0]))
    return np.column_stack([boxes, _flips(image, draws[:, -1], seed, epoch, indices)])


def _flips(image: schema.Image, draws: np.ndarray, seed: int, epoch: int, indices: np.ndarray) -> np.ndarray:
    """Return whether each sample is mirrored, bool [N], alternating as in Jordan 2024 (arXiv:2404.00498)."""
    if image.flip != "alternating":
        return draws < image.flip
    first = randomness.uniforms(seed, "flip", 0, indices, 1)[:, 0] < 0.5
    return first ^ bool(epoch % 2)


def _centred(image: schema.Image, height: int, width: int) -> tuple[int, int, int, int]:
    aspect = min(max(width / height, image.ratio[0]), image.ratio[1])
    crop_width = min(width, round(height * aspect))
    crop_height = min(height, round(width / aspect))
    return (height - crop_height) // 2, (width - crop_width) // 2, crop_height, crop_width


def centre_boxes(heights: np.ndarray, widths: np.ndarray, resize: int, size: int) -> np.ndarray:
    """Return the centred squares that scale to `size` when the shorter edge scales to `resize`: int64 [N, 5]."""
    squares = np.minimum(heights, widths).astype(np.int64) * size // resize
    squares = np.maximum(1, np.minimum(squares, np.minimum(heights, widths)))
    tops, lefts = (heights - squares) // 2, (widths - squares) // 2
    return np.column_stack([tops, lefts, squares, squares, np.zeros_like(squares)]).astype(np.int64)


def same_parts(
    boxes: np.ndarray, heights: np.ndarray, widths: np.ndarray, new_heights: np.ndarray, new_widths: np.ndarray
) -> np.ndarray:
    """Scale boxes [N, 5] to other sizes of the same images; edges are rounded, boxes have at least one pixel."""
    axes = ((0, 2, heights, new_heights), (1, 3, widths, new_widths))
    scaled = boxes.copy()
    for start, length, old, new in axes:
        scale, end = new / old, boxes[:, start] + boxes[:, length]
        scaled[:, start] = np.minimum(np.rint(boxes[:, start] * scale), new - 1)
        scaled[:, length] = np.maximum(np.rint(end * scale) - scaled[:, start], 1)
    return scaled


def cut(image: Image.Image, box: Box, size: int, interpolation: str) -> np.ndarray:
    """Cut a box, resize it to uint8 [size, size, 3], and mirror it if the box is mirrored."""
    top, left, height, width, mirrored = box
    # note: cropping first keeps the resampling filter inside the box, as torchvision's resized_crop does
    part = image.crop((left, top, left + width, top + height))
    pixels = np.asarray(part.resize((size, size), _RESAMPLING[interpolation]))
    return np.ascontiguousarray(pixels[:, ::-1]) if mirrored else np.array(pixels)


def centre_cut(image: Image.Image, resize: int, size: int, interpolation: str) -> np.ndarray:
    """Resize the shorter edge to `resize`, then crop the centre: uint8 [size, size, 3]."""
    image = _middle(image)
    width, height = image.size
    short, long = min(width, height), max(width, height)
    scaled = (resize, int(resize * long / short)) if width <= height else (int(resize * long / short), resize)
    resized = image.resize(scaled, _RESAMPLING[interpolation]) if scaled != image.size else image
    top, left = round((scaled[1] - size) / 2.0), round((scaled[0] - size) / 2.0)
    return np.array(resized.crop((left, top, left + size, top + size)))


def _middle(image: Image.Image) -> Image.Image:
    """Crop an image so narrow that resizing its shorter edge would take gigabytes."""
    width, height = image.size
    longest = _MOST_ASPECT * min(width, height)
    if max(width, height) <= longest:
        return image
    left, top = max(0, width - longest) // 2, max(0, height - longest) // 2
    return image.crop((left, top, left + min(width, longest), top + min(height, longest)))
