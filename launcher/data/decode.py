"""Picture files, whoever made them, read by Pillow: of few formats, of bounded size; imports no torch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image, UnidentifiedImageError

# note: what the file holds decides, not its name; among the others is PostScript, a program that Pillow would run
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
# Pillow's own bound, of which it only warns; ImageNet's largest picture has 61 million.
_MOST_PIXELS = 89_478_485


# EXIF's tag of how the camera was held (Exif 2.3, 4.6.4), and what puts its pictures upright.
_ORIENTATION = 0x0112
_TURNED = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# Modes of Pillow with 16 bits a pixel, which it would cut off above 255.
_DEEP = ("I;16", "I;16B", "I;16L", "I;16N")


class UnreadableImage(Exception):
    """Why a file cannot be read as a picture."""


@dataclass(frozen=True)
class Decoded:
    """A picture as RGB, the format and mode of its file, and whether it was turned upright."""

    picture: Image.Image
    format: str
    mode: str
    turned: bool


def decode(file: Path | BinaryIO, *, upright: bool) -> Decoded:
    """Decode a picture file; `upright` turns it as its EXIF data say.

    Raises:
        UnreadableImage: it is missing, damaged, too large, or of no format that is read.
    """
    with _opened(file) as picture:
        pixels, mode = _rgb(picture), picture.mode
        turn = _TURNED.get(_orientation(picture)) if upright else None
        turned = pixels if turn is None else pixels.transpose(turn)
        return Decoded(turned, str(picture.format), mode, turn is not None)


def _rgb(picture: Image.Image) -> Image.Image:
    if picture.mode not in _DEEP:
        return picture.convert("RGB")
    return Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8)).convert("RGB")


def _orientation(picture: Image.Image) -> Any:
    try:
        return picture.getexif().get(_ORIENTATION)
    # note: whoever wrote the metadata; the pixels are whole
    except Exception:
        return None


def size(path: Path) -> tuple[int, int]:
    """Width and height of a picture file as it is stored, which is not decoded.

    Raises:
        UnreadableImage: as `decode`, as far as the file's head tells.
    """
    with _opened(path) as picture:
        return picture.size


@contextmanager
def _opened(file: Path | BinaryIO) -> Iterator[Image.Image]:
    try:
        with warnings.catch_warnings():
            # note: of broken metadata and odd transparency, which change no pixel
            warnings.simplefilter("ignore")
            with Image.open(file, formats=_FORMATS) as picture:
                if picture.width * picture.height > _MOST_PIXELS:
                    raise Image.DecompressionBombError
                yield picture
    except Image.DecompressionBombError:
        raise UnreadableImage(f"it has more than {_MOST_PIXELS // 10**6} million pixels") from None
    except UnidentifiedImageError:
        raise UnreadableImage(f"it is none of {', '.join(_FORMATS)}") from None
    except OSError as error:
        raise UnreadableImage(error.strerror or str(error)) from None
    # note: a decoder fails on a damaged file with whatever error it happens to meet
    except Exception as error:
        raise UnreadableImage(f"{type(error).__name__} {error}".strip()) from None
