"""Image operations on a whole batch with a magnitude an image, as Pillow does them one by one.

Every function takes uint8 images [B, 3, H, W] and float32 magnitudes [B], both on one device, and gives uint8 images
[B, 3, H, W]. All arithmetic is elementwise: matrix products and convolutions of float32 may be rounded to 10 bits on
a GPU. Sources: AutoAugment (Cubuk et al. 2019) for the set, Pillow's ImageOps and ImageEnhance for the pixels.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from launcher.data.batch import constant

Operation = Callable[[Tensor, Tensor], Tensor]
Colour = tuple[float, float, float]

BLACK: Colour = (0, 0, 0)


def operate(name: str, images: Tensor, magnitudes: Tensor, fill: Colour = BLACK) -> Tensor:
    """One operation on all images; `fill`, in 0..255, is the colour of what geometric ones read from outside."""
    if name in GEOMETRIC:
        return _affine(images, fill, **GEOMETRIC[name](images, magnitudes))
    return OPERATIONS[name](images, magnitudes)


def autocontrast(images: Tensor, magnitudes: Tensor) -> Tensor:
    """Stretch each channel's range to 0..255; magnitudes are not used."""
    values = images.float()
    low, high = values.amin((2, 3), keepdim=True), values.amax((2, 3), keepdim=True)
    scale = 255 / (high - low).clamp(min=1)
    stretched = _to_uint8(values * scale - low * scale)
    return torch.where(high > low, stretched, images)


def equalize(images: Tensor, magnitudes: Tensor) -> Tensor:
    """Equalise each channel's histogram; magnitudes are not used."""
    batch, channels, height, width = images.shape
    pixels = images.reshape(batch * channels, height * width).long()
    histogram = torch.zeros(batch * channels, 256, dtype=torch.long, device=images.device)
    histogram.scatter_add_(1, pixels, torch.ones_like(pixels))
    last = pixels.amax(1, keepdim=True)
    step = (height * width - histogram.gather(1, last)) // 255
    before = histogram.cumsum(1) - histogram
    table = (before + step // 2) // step.clamp(min=1)
    equalized = table.clamp(max=255).gather(1, pixels).to(torch.uint8).reshape(images.shape)
    return torch.where(step.reshape(batch, channels, 1, 1) > 0, equalized, images)


def posterize(images: Tensor, magnitudes: Tensor) -> Tensor:
    """Keep so many leading bits of each value."""
    lost = 2 ** (8 - magnitudes.long())
    return (images.long() // _each(lost) * _each(lost)).to(torch.uint8)


def solarize(images: Tensor, magnitudes: Tensor) -> Tensor:
    """Invert values at or above the magnitude."""
    return torch.where(images.float() >= _each(magnitudes), 255 - images, images)


def solarize_add(images: Tensor, magnitudes: Tensor) -> Tensor:
    """Add the magnitude to values below 128."""
    return torch.where(images < 128, _to_uint8(images.float() + _each(magnitudes)), images)


def invert(images: Tensor, magnitudes: Tensor) -> Tensor:
    """Negate; magnitudes are not used."""
    return 255 - images


def color(images: Tensor, magnitudes: Tensor) -> Tensor:
    """Saturation: 0 is grey, 1 the original."""
    return _blend(_grey(images), images.float(), magnitudes)


def contrast(images: Tensor, magnitudes: Tensor) -> Tensor:
    """Contrast: 0 is the mean grey, 1 the original."""
    mean = torch.floor(_grey(images).mean((2, 3), keepdim=True) + 0.5)
    return _blend(mean, images.float(), magnitudes)


def brightness(images: Tensor, magnitudes: Tensor) -> Tensor:
    """Brightness: 0 is black, 1 the original."""
    return _to_uint8(images.float() * _each(magnitudes))


def sharpness(images: Tensor, magnitudes: Tensor) -> Tensor:
    """Sharpness: 0 is smoothed, 1 the original; border pixels stay."""
    values = images.float()
    rows = values[..., :-2, :] + values[..., 1:-1, :] + values[..., 2:, :]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * values[..., 1:-1, 1:-1]
    smooth = values.clone()
    smooth[..., 1:-1, 1:-1] = torch.floor(total / 13 + 0.5)
    return _blend(smooth, values, magnitudes)


def _rotation(images: Tensor, degrees: Tensor) -> dict[str, Tensor]:
    """Counter-clockwise about the centre."""
    angle = torch.deg2rad(-degrees)
    cos, sin = angle.cos(), angle.sin()
    middle_x, middle_y = images.shape[3] / 2, images.shape[2] / 2
    return {
        "xx": cos,
        "xy": sin,
        "x": middle_x - cos * middle_x - sin * middle_y,
        "yx": -sin,
        "yy": cos,
        "y": middle_y + sin * middle_x - cos * middle_y,
    }


OPERATIONS: dict[str, Operation] = {
    "autocontrast": autocontrast,
    "equalize": equalize,
    "posterize": posterize,
    "solarize": solarize,
    "color": color,
    "contrast": contrast,
    "brightness": brightness,
    "sharpness": sharpness,
    "invert": invert,
    "solarize_add": solarize_add,
}
# The terms of `_affine` for images and magnitudes; shears start from the top left.
GEOMETRIC: dict[str, Callable[[Tensor, Tensor], dict[str, Tensor]]] = {
    "rotate": _rotation,
    "shear_x": lambda _, slopes: {"xy": slopes},
    "shear_y": lambda _, slopes: {"yx": slopes},
    "translate_x": lambda _, pixels: {"x": pixels},
    "translate_y": lambda _, pixels: {"y": pixels},
}


def _each(values: Tensor) -> Tensor:
    """One value an image [B] against images [B, C, H, W]."""
    return values.view(-1, 1, 1, 1)


def _to_uint8(values: Tensor) -> Tensor:
    """Cut to 0..255 and drop the fraction, as Pillow does."""
    return values.clamp(0, 255).to(torch.uint8)


def _blend(degenerate: Tensor, values: Tensor, factors: Tensor) -> Tensor:
    return _to_uint8(degenerate + _each(factors) * (values - degenerate))


def _grey(images: Tensor) -> Tensor:
    """ITU-R 601 luma [B, 1, H, W] as float32 whole numbers, in 16-bit fixed point as Pillow's."""
    red, green, blue = images.int().split(1, dim=1)
    luma: Tensor = (19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16
    return luma.float()


def _affine(images: Tensor, fill: Colour, **terms: Tensor) -> Tensor:
    """Output pixel (x, y) reads input (xx x + xy y + x, yx x + yy y + y), pixel centres at one half.

    Bilinear, `fill` outside; `xx` and `yy` are one and the other terms zero unless given.
    """
    height, width = images.shape[2:]
    column = torch.arange(width, device=images.device).view(1, 1, -1) + 0.5
    row = torch.arange(height, device=images.device).view(1, -1, 1) + 0.5
    get = {name: term.view(-1, 1, 1) for name, term in terms.items()}
    x = get.get("xx", 1.0) * column + get.get("xy", 0.0) * row + get.get("x", 0.0)
    y = get.get("yx", 0.0) * column + get.get("yy", 1.0) * row + get.get("y", 0.0)
    inside = ((x >= 0) & (x < width) & (y >= 0) & (y < height)).unsqueeze(1)
    grid = torch.stack(torch.broadcast_tensors(2 * x / width - 1, 2 * y / height - 1), dim=-1)
    read = F.grid_sample(images.float(), grid, mode="bilinear", padding_mode="border", align_corners=False)
    outside = 0.0 if fill == BLACK else constant(fill, torch.float32, images.device)
    filled: Tensor = torch.where(inside, torch.floor(read + 0.5), outside)
    return filled.to(torch.uint8)
