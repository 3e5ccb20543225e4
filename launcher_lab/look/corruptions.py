"""Corrupted images: the fifteen kinds of ImageNet-C at five strengths.

Hendrycks & Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations" (2019).
"""

import io
import math
from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image
from scipy import ndimage

from launcher import randomness
from launcher.config.yaml_file import read_mapping

STRENGTHS = range(1, 6)
_FILE = Path(__file__).with_name("corruptions.yaml")
# The packages that have the photographs of frost in a folder of this name.
_PHOTOGRAPHS, _FROST = ("imagecorruptions", "imagenet_c"), "frost"
# note: the published code never draws the sixth photograph
_DRAWN = 5
# ImageNet-C computes lengths of elastic_transform from 244 px instead of 224.
_ELASTIC_SIZES: Mapping[int, int] = {224: 244}
_LUMA = np.array([0.299, 0.587, 0.114])


def kinds() -> list[str]:
    """Return the kinds that this machine can compute, in the published order: all but frost without photographs."""
    return [kind for kind in _values() if kind != _FROST or photographs()]


def published_size(size: int) -> int:
    """Return the size in pixels, of those that values are published for, that has the smallest ratio to `size`."""
    return min(_values()["fog"], key=lambda known: abs(math.log(known / size)))


def corrupted(pixels: np.ndarray, kind: str, strength: int, seed: int, index: int) -> np.ndarray:
    """Return a corrupted image, uint8 [size, size, 3] like `pixels`; its random numbers are those of seed and index.

    strength: 1 to 5, with the values of `published_size`.
    """
    random = randomness.generator(seed, f"corruption {kind}", strength, index)
    return corrupt(pixels, kind, strength, random)


def corrupt(pixels: np.ndarray, kind: str, strength: int, random: Any) -> np.ndarray:
    """Return the same with the random numbers of a NumPy generator."""
    size = published_size(len(pixels))
    values = _values()[kind][size][strength - 1]
    values = values if isinstance(values, list) else [values]
    if kind == "elastic_transform":
        edge = _ELASTIC_SIZES.get(size, size) * len(pixels) / size
        values = [value * edge for value in values]
    shares = _FUNCTIONS[kind](pixels / 255, random, *values)
    # note: the published code rounds down
    return np.asarray(np.clip(shares, 0, 1) * 255).astype(np.uint8)


@cache
def _values() -> dict[str, dict[int, list[Any]]]:
    return read_mapping(_FILE)


@cache
def photographs() -> tuple[Path, ...]:
    """Return the photographs of frost of an installed package; empty without one."""
    for name in _PHOTOGRAPHS:
        if (spec := find_spec(name)) and spec.origin:
            files = sorted((Path(spec.origin).parent / _FROST).glob("frost[1-6].*"))
            return tuple(files[:_DRAWN])
    return ()


def _gaussian_noise(image: np.ndarray, random: Any, deviation: float) -> np.ndarray:
    return np.asarray(image + random.normal(size=image.shape, scale=deviation))


def _shot_noise(image: np.ndarray, random: Any, photons: float) -> np.ndarray:
    return np.asarray(random.poisson(image * photons) / photons)


def _impulse_noise(image: np.ndarray, random: Any, share: float) -> np.ndarray:
    """Salt and pepper of each value by itself, as skimage's `random_noise`."""
    is_changed, is_white = random.random(image.shape) <= share, random.random(image.shape) <= 0.5
    return np.where(is_changed, is_white, image)


def _defocus_blur(image: np.ndarray, random: Any, radius: float, edge: float) -> np.ndarray:
    reach = np.arange(-8, 9) if radius <= 8 else np.arange(-radius, radius + 1)
    disk = (reach[:, None] ** 2 + reach**2 <= radius**2).astype(np.float32)
    width = 3 if radius <= 8 else 5
    return cv2.filter2D(image, -1, cv2.GaussianBlur(disk / disk.sum(), (width, width), edge))


def _glass_blur(image: np.ndarray, random: Any, deviation: float, farthest: int, passes: int) -> np.ndarray:
    """Replace each pixel by one nearby; the published code means to swap both, but its views copy one."""
    size = len(image)
    blurred = (_blurred(image, deviation) * 255).astype(np.uint8)
    rows, columns = np.meshgrid(*[np.arange(size - farthest, farthest, -1)] * 2, indexing="ij")
    place, sources = (rows * size + columns).ravel().tolist(), [*range(size * size)]
    for _ in range(passes):
        moves = random.integers(-farthest, farthest, size=(len(place), 2))
        other = (np.array(place) + moves[:, 1] * size + moves[:, 0]).tolist()
        for here, there in zip(place, other, strict=True):
            sources[here] = sources[there]
    moved = blurred.reshape(-1, 3)[sources].reshape(image.shape)
    return _blurred(moved / 255, deviation)


def _blurred(image: np.ndarray, deviation: float) -> np.ndarray:
    return np.asarray(ndimage.gaussian_filter(image, (deviation, deviation, 0), mode="nearest"))


def _motion_blur(image: np.ndarray, random: Any, radius: int, deviation: float) -> np.ndarray:
    return _moved(image, radius, deviation, random.uniform(-45, 45))


def _moved(image: np.ndarray, radius: int, deviation: float, degrees: float) -> np.ndarray:
    """Blur an image [H, W, C] in one direction, as ImageMagick: half of a Gaussian, with the edges repeated."""
    weights = np.exp(-(np.arange(2 * radius + 1) ** 2) / (2 * deviation**2))
    rows, columns = np.arange(image.shape[0]), np.arange(image.shape[1])
    down, right = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    total = np.zeros_like(image)
    for step, weight in enumerate(weights / weights.sum()):
        below, beside = (math.ceil(step * part - 0.5) for part in (down, right))
        from_rows, from_columns = rows.clip(-below, None) + below, columns.clip(-beside, None) + beside
        total += weight * image[from_rows.clip(0, len(rows) - 1)][:, from_columns.clip(0, len(columns) - 1)]
    return total


def _zoom_blur(image: np.ndarray, random: Any, end: float, step: float) -> np.ndarray:
    scales = np.arange(1, end, step)
    return np.asarray((image + sum(_magnified(image, scale) for scale in scales)) / (len(scales) + 1))


def _magnified(image: np.ndarray, scale: float) -> np.ndarray:
    """Return the middle of a square image [size, size, C], magnified to the same size."""
    size = len(image)
    part = math.ceil(size / scale)
    start = (size - part) // 2
    large = ndimage.zoom(image[start : start + part, start : start + part], (scale, scale, 1), order=1)
    start = (len(large) - size) // 2
    return np.asarray(large[start : start + size, start : start + size])


def _snow(image: np.ndarray, random: Any, *values: float) -> np.ndarray:
    mean, deviation, scale, least, radius, motion, kept = values
    flakes = random.normal(size=(*image.shape[:2], 1), loc=mean, scale=deviation)
    flakes = _magnified(flakes, scale)
    flakes = np.where(flakes < least, 0, flakes.clip(0, 1))
    flakes = _moved(flakes, int(radius), motion, random.uniform(-135, -45))
    flakes = np.round(flakes * 255) / 255
    grey = (image @ _LUMA)[..., None]
    whitened = kept * image + (1 - kept) * np.maximum(image, grey * 1.5 + 0.5)
    return np.asarray(whitened + flakes + np.rot90(flakes, 2))


def _frost(image: np.ndarray, random: Any, of_image: float, of_frost: float, scale: float) -> np.ndarray:
    size = len(image)
    frost = _photograph(int(random.integers(len(photographs()))), scale, size)
    top, left = random.integers(0, frost.shape[0] - size), random.integers(0, frost.shape[1] - size)
    return np.asarray(of_image * image + of_frost * frost[top : top + size, left : left + size])


@cache
def _photograph(number: int, scale: float, size: int) -> np.ndarray:
    """Return a photograph [H, W, 3] in [0, 1]: scaled, and larger than an image of `size`."""
    with Image.open(photographs()[number]) as file:
        pixels = np.asarray(file.convert("RGB"))
    scale = max(scale, (size + 1) / min(pixels.shape[:2]))
    return np.asarray(cv2.resize(pixels, None, fx=scale, fy=scale) / 255)


def _fog(image: np.ndarray, random: Any, weight: float, decay: float) -> np.ndarray:
    size, most = len(image), image.max()
    fog = _plasma(1 << (size - 1).bit_length(), decay, random)[:size, :size, None]
    return np.asarray((image + weight * fog) * most / (most + weight))


def _plasma(size: int, decay: float, random: Any) -> np.ndarray:
    """Return a height map [size, size] in [0, 1] that repeats at its edges, by the diamond-square algorithm."""
    heights, step, rough = np.zeros((size, size)), size, 100.0

    def near(total: np.ndarray) -> np.ndarray:
        return np.asarray(total / 4 + rough * random.uniform(-rough, rough, total.shape))

    while step >= 2:
        half = step // 2
        corners = heights[::step, ::step]
        pairs = corners + np.roll(corners, -1, 0)
        heights[half::step, half::step] = near(pairs + np.roll(pairs, -1, 1))
        middles, corners = heights[half::step, half::step], heights[::step, ::step]
        beside = middles + np.roll(middles, 1, 0) + corners + np.roll(corners, -1, 1)
        heights[::step, half::step] = near(beside)
        below = middles + np.roll(middles, 1, 1) + corners + np.roll(corners, -1, 0)
        heights[half::step, ::step] = near(below)
        step, rough = half, rough / decay
    heights -= heights.min()
    return np.asarray(heights / heights.max())


def _brightness(image: np.ndarray, random: Any, added: float) -> np.ndarray:
    """Add to the value of HSV; hue and saturation stay if all channels are multiplied alike, and black becomes grey."""
    value = image.max(2, keepdims=True)
    brighter = np.minimum(value + added, 1)
    return np.asarray(np.where(value > 0, image * (brighter / np.maximum(value, 1e-12)), brighter))


def _contrast(image: np.ndarray, random: Any, factor: float) -> np.ndarray:
    mean = image.mean((0, 1), keepdims=True)
    return np.asarray((image - mean) * factor + mean)


def _elastic_transform(image: np.ndarray, random: Any, length: float, deviation: float, corner: float) -> np.ndarray:
    shape = image.shape[:2]
    centre, reach = np.array(shape, np.float32) // 2, min(shape) // 3
    before = np.array([centre + reach, centre + np.array([reach, -reach]), centre - reach], np.float32)
    after = before + random.uniform(-corner, corner, size=before.shape).astype(np.float32)
    affine = cv2.getAffineTransform(before, after)
    image = cv2.warpAffine(image, affine, shape[::-1], borderMode=cv2.BORDER_REFLECT_101)
    right, down = (
        ndimage.gaussian_filter(random.uniform(-1, 1, size=shape), deviation, mode="reflect", truncate=3) * length
        for _ in range(2)
    )
    rows, columns = np.indices(shape)
    places = np.stack([rows + down, columns + right])
    channels = [ndimage.map_coordinates(image[..., n], places, order=1, mode="reflect") for n in range(3)]
    return np.stack(channels, 2)


def _pixelate(image: np.ndarray, random: Any, scale: float) -> np.ndarray:
    size, pixels = len(image), Image.fromarray((image * 255).round().astype(np.uint8))
    small = pixels.resize((int(size * scale), int(size * scale)), Image.Resampling.BOX)
    return _shares(small.resize((size, size), Image.Resampling.BOX))


def _jpeg_compression(image: np.ndarray, random: Any, quality: int) -> np.ndarray:
    file = io.BytesIO()
    Image.fromarray((image * 255).round().astype(np.uint8)).save(file, "JPEG", quality=quality)
    return _shares(Image.open(file))


def _shares(pixels: Image.Image) -> np.ndarray:
    # note: rounding down must give the same pixels
    return np.asarray(pixels) / 255 + 1e-6


_FUNCTIONS: Mapping[str, Callable[..., np.ndarray]] = {
    "gaussian_noise": _gaussian_noise, "shot_noise": _shot_noise, "impulse_noise": _impulse_noise,
    "defocus_blur": _defocus_blur, "glass_blur": _glass_blur, "motion_blur": _motion_blur, "zoom_blur": _zoom_blur,
    "snow": _snow, "frost": _frost, "fog": _fog, "brightness": _brightness, "contrast": _contrast,
    "elastic_transform": _elastic_transform, "pixelate": _pixelate, "jpeg_compression": _jpeg_compression,
}  # fmt: skip
