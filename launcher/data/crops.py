"""Random resized crops and flips keyed by the sample, and centre crops; imports no torch."""

from __future__ import annotations

import math
from collections.abc import Callable

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


# (uint8 pixels [H, W, 3], height, width, interpolation) to the same image at that size, antialiased
Resize = Callable[[np.ndarray, int, int, str], np.ndarray]


def resize_by_torch(pixels: np.ndarray, height: int, width: int, interpolation: str) -> np.ndarray:
    """Resize as Pillow-SIMD does, to the same pixels on processors with AVX2; Pillow's differ by the rounding."""
    import torch

    image = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    resized = torch.nn.functional.interpolate(image, (height, width), mode=interpolation, antialias=True)
    return np.asarray(resized[0].permute(1, 2, 0))


def resize_by_pillow(pixels: np.ndarray, height: int, width: int, interpolation: str) -> np.ndarray:
    """Resize by the installed Pillow."""
    return np.asarray(Image.fromarray(pixels).resize((width, height), _RESAMPLING[interpolation]))


def cut(pixels: np.ndarray, box: Box, size: int, interpolation: str, resize: Resize = resize_by_torch) -> np.ndarray:
    """Cut a box of uint8 [H, W, 3], resize it to [size, size, 3], and mirror it if the box is mirrored."""
    top, left, height, width, mirrored = box
    # note: cropping first keeps the resampling filter inside the box, as torchvision's resized_crop does
    resized = resize(pixels[top : top + height, left : left + width], size, size, interpolation)
    return np.array(resized[:, ::-1] if mirrored else resized, order="C")


def centre_cut(pixels: np.ndarray, short: int, size: int, interpolation: str) -> np.ndarray:
    """Resize the shorter edge of uint8 [H, W, 3] to `short`, then crop the centre: [size, size, 3]."""
    pixels = _middle(pixels)
    height, width = pixels.shape[:2]
    least, most = min(width, height), max(width, height)
    scaled = (int(short * most / least), short) if width <= height else (short, int(short * most / least))
    resized = resize_by_torch(pixels, *scaled, interpolation) if scaled != (height, width) else pixels
    top, left = round((scaled[0] - size) / 2.0), round((scaled[1] - size) / 2.0)
    centre = np.zeros((size, size, 3), np.uint8)
    part = resized[max(0, top) : top + size, max(0, left) : left + size]
    above, before = max(0, -top), max(0, -left)
    centre[above : above + part.shape[0], before : before + part.shape[1]] = part
    return centre


def _middle(pixels: np.ndarray) -> np.ndarray:
    """Crop an image so narrow that resizing its shorter edge would take gigabytes."""
    height, width = pixels.shape[:2]
    longest = _MOST_ASPECT * min(width, height)
    top, left = max(0, height - longest) // 2, max(0, width - longest) // 2
    return pixels[top : top + min(height, longest), left : left + min(width, longest)]
