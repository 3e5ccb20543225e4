"""Apply a different image operation to each image of a batch, with the same pixels as Pillow's.

There are three kinds, and each kind runs once: a table of 256 values per channel, an affine map, and a mix with a grey,
flat or smoothed copy. Arrays hold the random draws, so that no shape depends on pixels and no step synchronizes.
All arithmetic is elementwise: GPUs may round matrix products and convolutions of float32 to 10 bits. Sources:
AutoAugment (Cubuk et al. 2019) for the operations, Pillow's ImageOps and ImageEnhance for the pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from launcher.data.batch import constant
from launcher.later import F, torch

if TYPE_CHECKING:
    from torch import Tensor

Colour = tuple[float, float, float]

BLACK: Colour = (0, 0, 0)
ARRAYS = 6  # per choice
# Added before truncation: more than float32 coordinates lose at whole pixels, which must stay.
_SLACK = 1 / 256

# Tables for the values 0..255, float32 [256], and magnitudes, float32 [B, 1].
TABLES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "posterize": lambda values, bits: values - values % 2 ** (8 - bits),
    "solarize": lambda values, threshold: np.where(values >= threshold, 255 - values, values),
    "solarize_add": lambda values, added: np.where(values < 128, values + added, values),
    "brightness": lambda values, factors: values * factors,
    "invert": lambda values, _: 255 - values,
}
# Tables that depend on the image.
MEASURED = ("autocontrast", "equalize")
# Mixes with the grey image, its mean, the smoothed image.
MIXES = ("color", "contrast", "sharpness")
OPERATIONS = (*TABLES, *MEASURED, *MIXES)
# The terms xx, xy, x, yx, yy, y of `_affine` for magnitudes [B], height and width; shears keep the top left corner.
GEOMETRIC: dict[str, Callable[[np.ndarray, int, int], tuple[np.ndarray | float, ...]]] = {
    "rotate": lambda degrees, height, width: _rotation(degrees, height, width),
    "shear_x": lambda slopes, *_: (1, slopes, 0, 0, 1, 0),
    "shear_y": lambda slopes, *_: (1, 0, 0, slopes, 1, 0),
    "translate_x": lambda pixels, *_: (1, 0, pixels, 0, 1, 0),
    "translate_y": lambda pixels, *_: (1, 0, 0, 0, 1, pixels),
}


@dataclass(frozen=True)
class Choice:
    """One round on B images: numbers of operations int64 [B] in a set, and magnitudes float64 [B].

    The number after the last operation means none.
    """

    operations: np.ndarray
    magnitudes: np.ndarray

    def arrays(self, names: Sequence[str], height: int, width: int, *, fixed: bool) -> list[np.ndarray]:
        """Return the arrays of `apply` for images of this size: tables, and rows and values of the other kinds.

        A kind computes the rows that drew it. With `fixed` it computes the same number of rows in every step, except in
        rare draws, and does not change rows that drew another.
        """
        values = self.magnitudes.astype(np.float32)
        measured, measures = self._rows(names, MEASURED, fixed)
        moved, moves = self._rows(names, GEOMETRIC, fixed)
        mixed, mixes = self._rows(names, MIXES, fixed)
        return [
            self._tables(names, values),
            np.stack([measured, measures]),
            moved,
            _terms(moves, self.magnitudes[moved], height, width),
            np.stack([mixed, mixes]),
            np.where(mixes < len(MIXES), values[mixed], np.float32(1)),
        ]

    def _rows(self, names: Sequence[str], kind: Collection[str], fixed: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows int64 [R] that a kind computes, and their operations' numbers in it, or the next number."""
        number = np.full(len(names) + 1, len(kind))
        for place, name in enumerate(kind):
            if name in names:
                number[names.index(name)] = place
        drawn = number[self.operations]
        fraction = np.mean(number[:-1] < len(kind)).item()
        rows = np.argsort(drawn == len(kind), kind="stable")[: _row_count(drawn < len(kind), fraction, fixed)]
        return rows, drawn[rows]

    def _tables(self, names: Sequence[str], values: np.ndarray) -> np.ndarray:
        """Return tables uint8 [B, 256]; the identity for other kinds, and for tables that depend on the image."""
        tables = np.tile(np.arange(256, dtype=np.uint8), (len(values), 1))
        for name in TABLES.keys() & set(names):
            rows = self.operations == names.index(name)
            table = TABLES[name](np.arange(256, dtype=np.float32), values[rows, None])
            tables[rows] = table.clip(0, 255).astype(np.uint8)
        return tables


def _row_count(drawn: np.ndarray, fraction: float, fixed: bool) -> int:
    """Return the number of rows of a kind; four deviations above the mean if fixed, which 1 in 30,000 steps exceeds."""
    count, batch = int(drawn.sum()), len(drawn)
    usual = math.ceil(fraction * batch + 4 * math.sqrt(fraction * (1 - fraction) * batch))
    return max(count, min(batch, usual)) if fixed else count


def _terms(moves: np.ndarray, magnitudes: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return terms float32 [R, 2, 4] of x and y for numbers in `GEOMETRIC` and magnitudes [R]; the fourth is a size."""
    terms = np.zeros((len(moves), 2, 4), dtype=np.float32)
    terms[:, 0, [0, 3]], terms[:, 1, [1, 3]] = (1, width), (1, height)
    for number, make in enumerate(GEOMETRIC.values()):
        rows = moves == number
        for place, values in enumerate(make(magnitudes[rows], height, width)):
            terms[rows, place // 3, place % 3] = values
    return terms


def _rotation(degrees: np.ndarray, height: int, width: int) -> tuple[np.ndarray, ...]:
    """Return the terms of counter-clockwise rotations about the centre."""
    cos, sin = np.cos(np.deg2rad(-degrees)), np.sin(np.deg2rad(-degrees))
    x, y = width / 2, height / 2
    return cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y


def apply(images: Tensor, arrays: Sequence[Tensor], fill: Colour = BLACK) -> Tensor:
    """Apply one round to uint8 images [B, 3, H, W], in channels-last order; `arrays` are those of a choice.

    `fill`, in 0..255, is the colour outside of the image for geometric operations.
    """
    tables, (measured, measures), moved, terms, (mixed, mixes), factors = arrays
    pixels = images.permute(0, 2, 3, 1)
    tables = tables[:, None].expand(-1, 3, -1).contiguous()
    if len(measured):
        measures = measures.view(-1, 1, 1)
        by_image = _measured_tables(pixels.index_select(0, measured), tables.index_select(0, measured), measures)
        tables.index_copy_(0, measured, by_image)
    result = tables.view(-1).index_select(0, _table_indices(pixels, torch.int32).view(-1)).view(pixels.shape)
    if len(moved):
        result.index_copy_(0, moved, _affine(result.index_select(0, moved), terms, fill))
    if len(mixed):
        result.index_copy_(0, mixed, _mix(result.index_select(0, mixed), mixes, factors))
    return result.permute(0, 3, 1, 2)


def _table_indices(images: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the index of each value of uint8 [B, H, W, 3] in flattened tables [B, 3, 256]: [B, H, 3 W]."""
    batch, height, width, channels = images.shape
    starts = torch.arange(0, batch * channels * 256, 256, dtype=dtype, device=images.device)
    # note: by rows, since loops over three channels are slow on a CPU
    row = starts.view(batch, 1, 1, channels).expand(-1, -1, width, -1).reshape(batch, 1, -1)
    return row + images.reshape(batch, height, -1)


def _measured_tables(images: Tensor, tables: Tensor, measures: Tensor) -> Tensor:
    """Return tables uint8 [B, 3, 256] for numbers [B, 1, 1] in `MEASURED`: stretched to 0..255, or equalized."""
    batch, height, width, channels = images.shape
    indices = _table_indices(images, torch.int64).view(-1)
    counts = torch.zeros(batch * channels * 256, dtype=torch.int32, device=images.device)
    counts.scatter_add_(0, indices, counts.new_ones(1).expand(len(indices)))
    counts = counts.view(batch, channels, 256)
    levels = torch.arange(256, dtype=torch.int32, device=images.device)
    low = torch.where(counts > 0, levels, 255).amin(2, keepdim=True)
    high = torch.where(counts > 0, levels, 0).amax(2, keepdim=True)
    # note: truncation depends on the last bits: Pillow's are float64, and `255 / tensor` is a product with a reciprocal
    spread = (high - low).clamp(min=1).double()
    scale = torch.full_like(spread, 255) / spread
    stretched = torch.where(high > low, _to_uint8(levels * scale - low * scale), tables)
    step = (height * width - counts.gather(2, high.long())) // 255
    before = counts.cumsum(2, dtype=torch.int32) - counts
    equal = ((before + step // 2) // step.clamp(min=1)).clamp(max=255).to(torch.uint8)
    equalized = torch.where(step > 0, equal, tables)
    return torch.where(measures == 0, stretched, torch.where(measures == 1, equalized, tables))


def _affine(images: Tensor, terms: Tensor, fill: Colour) -> Tensor:
    """Sample output pixel (x, y) of [B, H, W, 3] from (xx x + xy y + x, yx x + yy y + y), with centres at one half.

    The interpolation is bilinear and truncates, as Pillow does, with `fill` outside.
    """
    height, width = images.shape[1:3]
    column = torch.arange(width, device=images.device) + 0.5
    row = torch.arange(height, device=images.device).view(-1, 1) + 0.5
    across, down, start, size = terms.view(-1, 2, 4, 1, 1).unbind(2)
    position = (across * column + down * row).add_(start)
    inside = ((position >= 0) & (position < size)).all(1, keepdim=True)
    grid = position.div_(size / 2).sub_(1).permute(0, 2, 3, 1)
    values = images.permute(0, 3, 1, 2).float()
    samples = F.grid_sample(values, grid, mode="bilinear", padding_mode="border", align_corners=False)
    truncated = samples.add_(_SLACK).to(torch.uint8).mul_(inside)
    if fill != BLACK:
        truncated.add_(constant(fill, torch.uint8, images.device) * ~inside)
    return truncated.permute(0, 2, 3, 1)


def _mix(images: Tensor, mixes: Tensor, factors: Tensor) -> Tensor:
    """Mix [B, H, W, 3] by numbers [B] in `MIXES`: factor 0 is the grey, flat or smoothed copy, 1 the original."""
    values = images.permute(0, 3, 1, 2).to(torch.int16, memory_format=torch.contiguous_format)
    grey = _grey(values)
    mean = torch.floor(grey.float().mean((2, 3), keepdim=True) + 0.5).to(torch.int16)
    number = mixes.view(-1, 1, 1, 1)
    degenerate = torch.where(number == 2, _smooth(values), torch.where(number == 0, grey, mean))
    mixed = (values - degenerate) * factors.view(-1, 1, 1, 1)
    return _to_uint8(mixed.add_(degenerate)).permute(0, 2, 3, 1)


def _grey(values: Tensor) -> Tensor:
    """Return the ITU-R 601 luma [B, 1, H, W] of int16 [B, 3, H, W] in 16-bit fixed point, as Pillow does."""
    red, green, blue = values.int().split(1, dim=1)
    luma: Tensor = (19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16
    return luma.to(torch.int16)


def _smooth(values: Tensor) -> Tensor:
    """Smooth int16 [B, 3, H, W] with 1/13 of each neighbour and 5/13 of the pixel itself; the border stays."""
    rows = values[..., :-2, :] + values[..., 1:-1, :] + values[..., 2:, :]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * values[..., 1:-1, 1:-1]
    smooth = values.clone()
    # note: rounds to nearest; thirteenths have no ties
    smooth[..., 1:-1, 1:-1] = (total + 6) // 13
    return smooth


def _to_uint8(values: Tensor) -> Tensor:
    """Clip to 0..255 and truncate, as Pillow does."""
    return values.clamp(0, 255).to(torch.uint8)
