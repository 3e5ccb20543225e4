"""Picture files, whoever made them, read by Pillow: of few formats, of bounded size; imports no torch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from PIL import Image, UnidentifiedImageError

# note: what the file holds decides, not its name; among the others is PostScript, a program that Pillow would run
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
# Pillow's own bound, of which it only warns; ImageNet's largest picture has 61 million.
_MOST_PIXELS = 89_478_485


class NoPicture(Exception):
    """Why a file cannot be read as a picture."""


@dataclass(frozen=True)
class Decoded:
    """A picture as RGB, and the format and mode of its file."""

    picture: Image.Image
    format: str
    mode: str


def decode(file: Path | BinaryIO) -> Decoded:
    """Decode a picture file.

    Raises:
        NoPicture: it is missing, damaged, too large, or of no format that is read.
    """
    with _opened(file) as picture:
        return Decoded(picture.convert("RGB"), str(picture.format), picture.mode)


def size(path: Path) -> tuple[int, int]:
    """Width and height of a picture file, which is not decoded.

    Raises:
        NoPicture: as `decode`, as far as the file's head tells.
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
        raise NoPicture(f"it has more than {_MOST_PIXELS // 10**6} million pixels") from None
    except UnidentifiedImageError:
        raise NoPicture(f"it is none of {', '.join(_FORMATS)}") from None
    except OSError as error:
        raise NoPicture(error.strerror or str(error)) from None
    # note: a decoder fails on a damaged file with whatever error it happens to meet
    except Exception as error:
        raise NoPicture(f"{type(error).__name__} {error}".strip()) from None
