"""The same image operations on one picture by Pillow: for loaders' workers."""

from __future__ import annotations

from collections.abc import Callable

from PIL import Image, ImageEnhance, ImageOps

from launcher.algorithms.image_operations import BLACK, Colour

Operation = Callable[[Image.Image, float], Image.Image]
Terms = tuple[float, float, float, float, float, float]


def operate(name: str, picture: Image.Image, magnitude: float, fill: Colour = BLACK) -> Image.Image:
    """One operation; `fill` is the colour of what geometric ones read from outside."""
    if name == "rotate":
        return picture.rotate(magnitude, Image.Resampling.BILINEAR, fillcolor=fill)
    if name in _TERMS:
        terms = _TERMS[name](magnitude)
        return picture.transform(picture.size, Image.Transform.AFFINE, terms, Image.Resampling.BILINEAR, fillcolor=fill)
    return _OPERATIONS[name](picture, magnitude)


_OPERATIONS: dict[str, Operation] = {
    "autocontrast": lambda picture, _: ImageOps.autocontrast(picture),
    "equalize": lambda picture, _: ImageOps.equalize(picture),
    "posterize": lambda picture, bits: ImageOps.posterize(picture, int(bits)),
    "solarize": lambda picture, threshold: ImageOps.solarize(picture, threshold),  # type: ignore[arg-type]
    "color": lambda picture, factor: ImageEnhance.Color(picture).enhance(factor),
    "contrast": lambda picture, factor: ImageEnhance.Contrast(picture).enhance(factor),
    "brightness": lambda picture, factor: ImageEnhance.Brightness(picture).enhance(factor),
    "sharpness": lambda picture, factor: ImageEnhance.Sharpness(picture).enhance(factor),
    "invert": lambda picture, _: ImageOps.invert(picture),
    "solarize_add": lambda picture, added: picture.point(
        [min(255, value + int(added)) if value < 128 else value for value in range(256)] * 3
    ),
}
_TERMS: dict[str, Callable[[float], Terms]] = {
    "shear_x": lambda slope: (1, slope, 0, 0, 1, 0),
    "shear_y": lambda slope: (1, 0, 0, slope, 1, 0),
    "translate_x": lambda pixels: (1, 0, pixels, 0, 1, 0),
    "translate_y": lambda pixels: (1, 0, 0, 0, 1, pixels),
}
