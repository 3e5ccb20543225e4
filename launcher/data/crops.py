"""Random resized crops and flips keyed by the sample, and centre crops; imports no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from launcher.compute import randomness
from launcher.config import schema
from launcher.config.fields import edges, in_ratio

if TYPE_CHECKING:
    from torch import Tensor

_TRIES = 10
_DRAWS = 4 * _TRIES + 1
_MOST_ASPECT = 50
_RESAMPLING = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


# top, left, height and width in pixels of the stored image, and 1 if it is mirrored
Box = tuple[int, int, int, int, int]
# the value of each channel around an image; None if it has no margins
Fill = Sequence[float] | None


class Crops:
    """The random resized crops and flips of some samples in one epoch (Szegedy et al. 2015), for images of any size.

    A crop is the first of ten that fits into its image, with an area uniform in `scale` and an aspect ratio log-uniform
    in `ratio`, or else the largest centred one within the ratios. These are relative to the ratio of `train_size`, or
    to that of the image where `fit` keeps it whole.
    """

    def __init__(self, image: schema.Image, seed: int, epoch: int, indices: np.ndarray):
        self.image = image
        draws = randomness.uniforms(seed, "crop", epoch, indices, _DRAWS)
        low, high = (math.log(ratio) for ratio in image.ratio)
        tries = draws[:, :-1].reshape(len(draws), _TRIES, 4)
        tries[..., 0] = image.scale[0] + (image.scale[1] - image.scale[0]) * tries[..., 0]
        tries[..., 1] = np.exp(low + (high - low) * tries[..., 1])
        self._tries = tries.tolist()
        rows, columns = edges(image.train_size)
        self._base = columns / rows if image.fit == "crop" else None
        self._flips = _flips(image, draws[:, -1], seed, epoch, indices).tolist()

    def box(self, number: int, height: int, width: int) -> Box:
        """Return the crop of one of the samples, given the size of its image."""
        mirrored = int(self._flips[number])
        if self.image.fit != "crop" and self.image.scale[0] == 1:
            return 0, 0, height, width, mirrored
        base = self._base or width / height
        for share, aspect, top, left in self._tries[number]:
            area, aspect = height * width * share, aspect * base
            crop_width, crop_height = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < crop_width <= width and 0 < crop_height <= height:
                places = int(top * (height - crop_height + 1)), int(left * (width - crop_width + 1))
                return *places, crop_height, crop_width, mirrored
        return *_centred(self.image, base, height, width), mirrored


def random_crops(
    image: schema.Image, heights: np.ndarray, widths: np.ndarray, *, seed: int, epoch: int, indices: np.ndarray
) -> np.ndarray:
    """Draw the crops of samples in one epoch: int64 [N, 5], top, left, height, width, and 1 where mirrored."""
    crops = Crops(image, seed, epoch, indices)
    sizes = zip(heights.tolist(), widths.tolist(), strict=True)
    return np.array([crops.box(number, *size) for number, size in enumerate(sizes)], np.int64)


def _flips(image: schema.Image, draws: np.ndarray, seed: int, epoch: int, indices: np.ndarray) -> np.ndarray:
    """Return whether each sample is mirrored, bool [N], alternating as in Jordan 2024 (arXiv:2404.00498)."""
    if image.flip != "alternating":
        return draws < image.flip
    first = randomness.uniforms(seed, "flip", 0, indices, 1)[:, 0] < 0.5
    return first ^ bool(epoch % 2)


def _centred(image: schema.Image, base: float, height: int, width: int) -> tuple[int, int, int, int]:
    aspect = min(max(width / height / base, image.ratio[0]), image.ratio[1]) * base
    crop_width = min(width, round(height * aspect))
    crop_height = min(height, round(width / aspect))
    return (height - crop_height) // 2, (width - crop_width) // 2, crop_height, crop_width


def centre_boxes(heights: np.ndarray, widths: np.ndarray, short: float, size: int | Sequence[int]) -> np.ndarray:
    """Return the centred boxes that scale to `size` when images cover the `short` edge of its ratio: int64 [N, 5]."""
    rows, columns = edges(size)
    least = min(rows, columns)
    most = np.minimum(heights.astype(np.int64) * least // rows, widths.astype(np.int64) * least // columns)
    cut = np.maximum(1, np.minimum(most * least // short, most))
    # note: `short` need not be whole
    boxes = [np.maximum(1, cut.astype(np.int64) * edge // least) for edge in (rows, columns)]
    places = [(whole - own) // 2 for whole, own in zip((heights, widths), boxes, strict=True)]
    return np.column_stack([*places, *boxes, np.zeros_like(boxes[0])]).astype(np.int64)


def whole_boxes(heights: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """Return the boxes of whole images: int64 [N, 5]."""
    return np.column_stack([0 * heights, 0 * heights, heights, widths, 0 * heights]).astype(np.int64)


def place_inside(height: int, width: int, size: Sequence[int]) -> tuple[slice, slice]:
    """Return where an image of this height and width is in one of `size` that shows it whole, as timm rounds it."""
    ratio = max(height / size[0], width / size[1])
    inside = (max(1, round(edge / ratio)) for edge in (height, width))
    starts = ((edge, (whole - edge) // 2) for edge, whole in zip(inside, size, strict=True))
    rows, columns = (slice(start, start + edge) for edge, start in starts)
    return rows, columns


# (uint8 pixels [H, W, C], height, width, interpolation) to the same image at that size, antialiased
Resize = Callable[[np.ndarray, int, int, str], np.ndarray]


def resize_by_torch(pixels: np.ndarray, height: int, width: int, interpolation: str) -> np.ndarray:
    """Resize as Pillow-SIMD does, to the same pixels on processors with AVX2; Pillow's differ by the rounding."""
    import torch

    images, size = _channels_last(pixels), (height, width)
    resized = torch.nn.functional.interpolate(images, size, mode=interpolation, antialias=True)
    return np.asarray(resized[0].permute(1, 2, 0))


def resize_by_pillow(pixels: np.ndarray, height: int, width: int, interpolation: str) -> np.ndarray:
    """Resize by the installed Pillow."""
    return np.array(Image.fromarray(pixels).resize((width, height), _RESAMPLING[interpolation]))


def resize_to_nearest(pixels: np.ndarray, height: int, width: int, _: str = "") -> np.ndarray:
    """Resize an array [H, W, ...] to the values whose pixels have the centres of the new ones, as masks need it."""
    old, new = pixels.shape[:2], (height, width)
    rows, columns = ((2 * np.arange(n) + 1) * edge // (2 * n) for n, edge in zip(new, old, strict=True))
    return np.asarray(pixels[rows[:, None], columns])


def resize_of(decoder: str) -> Resize:
    """Return what resizes with a decoder: Pillow, or Pillow-SIMD where it is installed, for its own images."""
    return resize_by_pillow if decoder == "pillow" else resize_by_torch


def cut(
    pixels: np.ndarray, box: Box, size: int | Sequence[int], interpolation: str, resize: Resize = resize_by_torch,
    fill: Fill = None,
) -> np.ndarray:  # fmt: skip
    """Cut a box of uint8 [H, W, C], resize it to [*size, C], and mirror it if the box is mirrored.

    fill: of the pixels around the box, if it keeps its ratio.
    """
    top, left, height, width, mirrored = box
    rows, columns = edges(size)
    if fill is not None:
        place = place_inside(height, width, (rows, columns))
        canvas = np.empty((rows, columns, pixels.shape[2]), pixels.dtype)
        canvas[:] = fill
        canvas[place] = cut(pixels, box, canvas[place].shape[:2], interpolation, resize)
        return canvas
    # note: cropping first keeps the resampling filter inside the box, as torchvision's resized_crop does
    resized = resize(pixels[top : top + height, left : left + width], rows, columns, interpolation)
    # note: torch's flip is vectorized for pixels, NumPy's copy takes as long as the resize
    mirror = np.asarray(_channels_last(resized).flip(3)[0].permute(1, 2, 0)) if mirrored else resized
    return np.ascontiguousarray(mirror)


def _channels_last(pixels: np.ndarray) -> Tensor:
    """Return uint8 [H, W, C] as [1, C, H, W] with strides that torch takes for channels last, its faster path."""
    import torch

    return torch.from_numpy(pixels)[None].permute(0, 3, 1, 2)


def centre_cut(
    pixels: np.ndarray, short: float | None, size: int | Sequence[int], interpolation: str,
    resize: Resize = resize_by_torch, fill: Fill = None,
) -> np.ndarray:  # fmt: skip
    """Resize uint8 [H, W, C] to cover the `short` edge of the ratio of `size`, then crop the centre: [*size, C].

    If `short` is not whole, cut the centre first, then resize it. Without `short`, `cut` the whole image.
    """
    if short is None:
        return cut(pixels, (0, 0, *pixels.shape[:2], 0), size, interpolation, resize, fill)
    pixels, whole = _middle(pixels), edges(size)
    height, width = pixels.shape[:2]
    if not isinstance(short, int):
        (box,) = centre_boxes(np.array([height]), np.array([width]), short, size).tolist()
        return cut(pixels, box, size, interpolation, resize)
    rows, columns = in_ratio(short, whole)
    is_tall = width * rows <= height * columns
    scaled = (int(columns * height / width), columns) if is_tall else (rows, int(rows * width / height))
    resized = resize(pixels, *scaled, interpolation) if scaled != (height, width) else pixels
    # note: as torchvision, which rounds halves to even, but the margin of a larger crop down
    margins = [(edge - own) / 2 for edge, own in zip(scaled, whole, strict=True)]
    top, left = (max(int(margin), round(margin)) for margin in margins)
    centre = np.zeros((*whole, *resized.shape[2:]), resized.dtype)
    part = resized[max(0, top) : top + whole[0], max(0, left) : left + whole[1]]
    above, before = max(0, -top), max(0, -left)
    centre[above : above + part.shape[0], before : before + part.shape[1]] = part
    return centre


def _middle(pixels: np.ndarray) -> np.ndarray:
    """Trim an image so narrow that resizing its shorter edge would take gigabytes; its centre crop stays the same."""
    height, width = pixels.shape[:2]
    least = min(height, width)
    # note: by an even multiple of the shorter edge at both ends, so that later roundings stay the same
    top, left = (max(0, edge - _MOST_ASPECT * least) // (4 * least) * 2 * least for edge in (height, width))
    return pixels[top : height - top, left : width - left]
