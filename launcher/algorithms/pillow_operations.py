"""The same image operations on one picture by Pillow: for loaders' workers."""

from __future__ import annotations

from collections.abc import Callable

from PIL import Image, ImageEnhance, ImageOps

Operation = Callable[[Image.Image, float], Image.Image]


def _affine(picture: Image.Image, terms: tuple[float, float, float, float, float, float]) -> Image.Image:
    return picture.transform(picture.size, Image.Transform.AFFINE, terms, Image.Resampling.BILINEAR)


OPERATIONS: dict[str, Operation] = {
    "autocontrast": lambda picture, _: ImageOps.autocontrast(picture),
    "equalize": lambda picture, _: ImageOps.equalize(picture),
    "posterize": lambda picture, bits: ImageOps.posterize(picture, int(bits)),
    "rotate": lambda picture, degrees: picture.rotate(degrees, Image.Resampling.BILINEAR),
    "solarize": lambda picture, threshold: ImageOps.solarize(picture, threshold),  # type: ignore[arg-type]
    "shear_x": lambda picture, slope: _affine(picture, (1, slope, 0, 0, 1, 0)),
    "shear_y": lambda picture, slope: _affine(picture, (1, 0, 0, slope, 1, 0)),
    "translate_x": lambda picture, pixels: _affine(picture, (1, 0, pixels, 0, 1, 0)),
    "translate_y": lambda picture, pixels: _affine(picture, (1, 0, 0, 0, 1, pixels)),
    "color": lambda picture, factor: ImageEnhance.Color(picture).enhance(factor),
    "contrast": lambda picture, factor: ImageEnhance.Contrast(picture).enhance(factor),
    "brightness": lambda picture, factor: ImageEnhance.Brightness(picture).enhance(factor),
    "sharpness": lambda picture, factor: ImageEnhance.Sharpness(picture).enhance(factor),
}
