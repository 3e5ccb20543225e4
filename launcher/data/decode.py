"""Decode image files of any origin by Pillow: few formats, bounded sizes; imports no torch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

# note: what the file holds decides, not its name; among the others is PostScript, a program that Pillow would run
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
# Pillow's own bound, of which it only warns; ImageNet's largest image has 61 million.
_MOST_PIXELS = 89_478_485
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
        mode, image_format, turned = image.mode, str(image.format), upright and _turn(image)
        whole = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)) if mode in _DEEP else image
        return Decoded(whole.convert("RGB"), image_format, mode, turned)


def _turn(image: Image.Image) -> bool:
    """Turn an image as its EXIF data say (Exif 2.3, 4.6.4); returns whether they say so."""
    # note: what cannot be decoded is to be found before metadata are read, whose errors do not count
    image.load()
    try:
        turned = image.getexif().get(ExifTags.Base.Orientation) in range(2, 9)
        ImageOps.exif_transpose(image, in_place=True)
    # note: metadata can hold anything; the pixels are whole
    except Exception:
        return False
    return turned


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
        raise UnreadableImage(f"more than {_MOST_PIXELS // 10**6} million pixels") from None
    except UnidentifiedImageError:
        raise UnreadableImage(f"none of {', '.join(_FORMATS)}") from None
    except OSError as error:
        raise UnreadableImage(error.strerror or str(error)) from None
    # note: on a damaged file a decoder raises whatever it happens to meet
    except Exception as error:
        raise UnreadableImage(f"{type(error).__name__} {error}".strip()) from None
