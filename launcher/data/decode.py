"""Decode image files of any origin by Pillow: few formats, bounded sizes; imports no torch."""

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
# Pillow's own bound, of which it only warns; ImageNet's largest image has 61 million.
_MOST_PIXELS = 89_478_485


# EXIF's tag of how the camera was held (Exif 2.3, 4.6.4), and what turns its images upright.
_ORIENTATION = 0x0112
_TURNS = {
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
    """Why a file cannot be read as an image."""


@dataclass(frozen=True)
class Decoded:
    """An image as RGB, the format and mode of its file, and whether it was turned upright."""

    image: Image.Image
    format: str
    mode: str
    turned: bool


def decode(file: Path | BinaryIO, *, upright: bool) -> Decoded:
    """Decode an image file; `upright` turns it as its EXIF data say.

    Raises:
        UnreadableImage: it is missing, damaged, too large, or of no format that is read.
    """
    with _opened(file) as image:
        mode = image.mode
        whole = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)) if mode in _DEEP else image
        rgb = whole.convert("RGB")
        turn = _TURNS.get(_orientation(image)) if upright else None
        return Decoded(rgb.transpose(turn) if turn is not None else rgb, str(image.format), mode, turn is not None)


def _orientation(image: Image.Image) -> Any:
    try:
        return image.getexif().get(_ORIENTATION)
    # note: metadata can hold anything; the pixels are whole
    except Exception:
        return None


def size(path: Path) -> tuple[int, int]:
    """Return width and height of an image file as it is stored, without decoding it.

    Raises:
        UnreadableImage: as `decode`, as far as the head of the file shows.
    """
    with _opened(path) as image:
        return image.size


@contextmanager
def _opened(file: Path | BinaryIO) -> Iterator[Image.Image]:
    try:
        with warnings.catch_warnings():
            # note: Pillow warns of broken metadata and odd transparency, which change no pixel
            warnings.simplefilter("ignore")
            with Image.open(file, formats=_FORMATS) as image:
                if image.width * image.height > _MOST_PIXELS:
                    raise Image.DecompressionBombError
                yield image
    except Image.DecompressionBombError:
        raise UnreadableImage(f"it has more than {_MOST_PIXELS // 10**6} million pixels") from None
    except UnidentifiedImageError:
        raise UnreadableImage(f"it is none of {', '.join(_FORMATS)}") from None
    except OSError as error:
        raise UnreadableImage(error.strerror or str(error)) from None
    # note: on a damaged file a decoder raises whatever it happens to meet
    except Exception as error:
        raise UnreadableImage(f"{type(error).__name__} {error}".strip()) from None
