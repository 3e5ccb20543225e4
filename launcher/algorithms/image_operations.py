"""Image operations on a whole batch with a magnitude an image, as Pillow does them one by one.

Every function takes uint8 images [B, 3, H, W] and float32 magnitudes [B], both on one device, and gives uint8 images
[B, 3, H, W]. Sources: AutoAugment (Cubuk et al. 2019) for the set, Pillow's ImageOps and ImageEnhance for the pixels.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Operation = Callable[[Tensor, Tensor], Tensor]

# ITU-R 601 luma in 16-bit fixed point, as Pillow converts to grey.
_LUMA = (19595, 38470, 7471)


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
    kernel = torch.ones(3, 3, device=images.device)
    kernel[1, 1] = 5
    smooth = values.clone()
    inner = F.conv2d(values, (kernel / 13).expand(3, 1, 3, 3), groups=3)
    smooth[..., 1:-1, 1:-1] = torch.floor(inner + 0.5)
    return _blend(smooth, values, magnitudes)


def shear_x(images: Tensor, magnitudes: Tensor) -> Tensor:
    """Read pixel (x + magnitude * y, y), from the top left."""
    return _affine(images, xy=magnitudes)


def shear_y(images: Tensor, magnitudes: Tensor) -> Tensor:
    """Read pixel (x, y + magnitude * x), from the top left."""
    return _affine(images, yx=magnitudes)


def translate_x(images: Tensor, magnitudes: Tensor) -> Tensor:
    """Read pixel (x + magnitude, y)."""
    return _affine(images, x=magnitudes)


def translate_y(images: Tensor, magnitudes: Tensor) -> Tensor:
    """Read pixel (x, y + magnitude)."""
    return _affine(images, y=magnitudes)


def rotate(images: Tensor, magnitudes: Tensor) -> Tensor:
    """Turn counter-clockwise about the centre by so many degrees."""
    angle = torch.deg2rad(-magnitudes)
    cos, sin = angle.cos(), angle.sin()
    middle_x, middle_y = images.shape[3] / 2, images.shape[2] / 2
    return _affine(
        images,
        xx=cos,
        xy=sin,
        x=middle_x - cos * middle_x - sin * middle_y,
        yx=-sin,
        yy=cos,
        y=middle_y + sin * middle_x - cos * middle_y,
    )


OPERATIONS: dict[str, Operation] = {
    "autocontrast": autocontrast,
    "equalize": equalize,
    "posterize": posterize,
    "rotate": rotate,
    "solarize": solarize,
    "shear_x": shear_x,
    "shear_y": shear_y,
    "translate_x": translate_x,
    "translate_y": translate_y,
    "color": color,
    "contrast": contrast,
    "brightness": brightness,
    "sharpness": sharpness,
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
    """Luma [B, 1, H, W] as float32 whole numbers."""
    weights = torch.tensor(_LUMA, device=images.device).view(1, 3, 1, 1)
    return (((images.long() * weights).sum(1, keepdim=True) + 0x8000) >> 16).float()


def _affine(images: Tensor, **terms: Tensor) -> Tensor:
    """Output pixel (x, y) reads input (xx x + xy y + x, yx x + yy y + y), pixel centres at one half; black outside.

    Bilinear; `xx` and `yy` are one and the other terms zero unless given.
    """
    batch, _, height, width = images.shape
    zero = torch.zeros(batch, device=images.device)
    get = {"xx": zero + 1, "yy": zero + 1, **terms}
    xx, xy, x = (get.get(name, zero) for name in ("xx", "xy", "x"))
    yx, yy, y = (get.get(name, zero) for name in ("yx", "yy", "y"))
    # note: pixel coordinates u = (n + 1) * side / 2 turn into normalised ones n in [-1, 1]
    theta = torch.stack(
        [
            torch.stack([xx, xy * height / width, xx + xy * height / width + 2 * x / width - 1], 1),
            torch.stack([yx * width / height, yy, yy + yx * width / height + 2 * y / height - 1], 1),
        ],
        1,
    )
    grid = F.affine_grid(theta, [batch, 3, height, width], align_corners=False)
    read = F.grid_sample(images.float(), grid, mode="bilinear", padding_mode="border", align_corners=False)
    inside = ((grid >= -1) & (grid < 1)).all(-1).unsqueeze(1)
    return torch.where(inside, torch.floor(read + 0.5), 0.0).to(torch.uint8)
