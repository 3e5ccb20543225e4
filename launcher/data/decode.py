"""Decode untrusted image files with Pillow: few formats, bounded sizes; imports no torch."""

import importlib
import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from PIL import ExifTags, Image, ImageOps, PngImagePlugin, UnidentifiedImageError, features

# note: the content decides, not the name; Pillow's other formats include PostScript, which it would execute
_FORMATS = ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"]
# Formats that need a package: their extensions, and how a file of ISO's container starts after four bytes.
_OF_PACKAGES = {
    "AVIF": ("Pillow with AVIF", (".avif",), (b"ftypavif", b"ftypavis")),
    "HEIF": ("the package pillow-heif", (".heic", ".heif"), (b"ftyphei", b"ftyphev", b"ftypmif1", b"ftypmsf1")),
}
# Pillow's own bound, at which it only warns; ImageNet's largest image has 61 million.
MOST_PIXELS = 89_478_485
# Pillow's modes with 16 bits per pixel, whose values it would clip at 255; in PNG and PPM files, "I" is one too.
_DEEP = ("I;16", "I;16B", "I;16L", "I;16N")
# note: profiles and texts beside the pixels may be larger than Pillow's bound of 1 MiB; they are not kept
PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY = 1 << 26


if features.check("avif"):
    _FORMATS.append("AVIF")
with suppress(ImportError):
    importlib.import_module("pillow_heif").register_heif_opener()
    _FORMATS.append("HEIF")


Item = TypeVar("Item")
Result = TypeVar("Result")


class UnreadableImage(Exception):
    """A file cannot be decoded as an image; the text gives the reason."""


def attempt(work: Callable[[Item], Result], item: Item) -> Result | UnreadableImage:
    """Return what `work` returns for an item, or why its image cannot be read."""
    try:
        return work(item)
    except UnreadableImage as reason:
        return reason.with_traceback(None)


@dataclass(frozen=True)
class Decoded:
    """An image as RGB, the format and mode of its file, and whether EXIF rotation was applied."""

    image: Image.Image
    format: str
    mode: str
    turned: bool


def decode(data: bytes, *, upright: bool) -> Decoded:
    """Decode an image file's bytes; `upright` applies its EXIF rotation.

    Raises UnreadableImage if the image is damaged, too large, or has an unsupported format.
    """
    with opened(data) as image:
        mode, image_format = image.mode, str(image.format)
        is_deep = _is_deep(image)
        if mode in ("I", "F") and not is_deep:
            raise UnreadableImage("32 bits a channel, which have no fixed range; convert it to 8 or 16")
        turned = _turn(image) if upright else _leave(image)
        whole = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)) if is_deep else image
        return Decoded(whole.convert("RGB"), image_format, mode, turned)


def samples(data: bytes, *, upright: bool, as_colours: bool = False) -> np.ndarray:
    """Decode an image's samples as they are stored: [H, W] of numbers or palette indices, or [H, W, channels].

    as_colours: uint8 [H, W, 3] instead. Raises UnreadableImage as `decode`.
    """
    with opened(data) as image:
        _turn(image) if upright else _leave(image)
        return np.asarray(image.convert("RGB") if as_colours else image)


def stored(data: bytes, *, upright: bool) -> np.ndarray:
    """Decode an image's channels as they are stored, palettes to colours: [H, W] or [H, W, channels].

    Raises UnreadableImage as `decode`.
    """
    with opened(data) as image:
        _turn(image) if upright else _leave(image)
        if image.mode in ("1", "P"):
            image = image.convert("L" if image.mode == "1" else "RGBA" if "transparency" in image.info else "RGB")
        pixels = np.asarray(image)
        return pixels.astype(np.uint16) if _is_deep(image) else pixels


def _is_deep(image: Image.Image) -> bool:
    """Return whether an image has 16 bits a pixel."""
    return image.mode in _DEEP or (image.mode == "I" and image.format in ("PNG", "PPM"))


def _turn(image: Image.Image) -> bool:
    """Apply an image's EXIF rotation (Exif 2.3, 4.6.4); return whether it has one."""
    turned = image.format == "TIFF" and _orientation(image) in range(2, 9)
    # note: decode first, since errors of the metadata below are ignored; decoding turns a TIFF
    image.load()
    try:
        turned |= image.getexif().get(ExifTags.Base.Orientation) in range(2, 9)
        ImageOps.exif_transpose(image, in_place=True)
    # note: metadata can be malformed in any way; the pixels are intact
    except Exception:
        return False
    return turned


def _leave(image: Image.Image) -> bool:
    """Keep a TIFF as it is stored, which Pillow would turn when it is decoded; return False."""
    if image.format == "TIFF" and _orientation(image) is not None:
        del image.getexif()[ExifTags.Base.Orientation]
    return False


def _orientation(image: Image.Image) -> int | None:
    # note: metadata can be malformed in any way; the pixels are intact
    with suppress(Exception):
        return image.getexif().get(ExifTags.Base.Orientation)
    return None


def size(data: bytes, *, upright: bool = False) -> tuple[int, int]:
    """Return width and height of an image as it is stored, or `upright`, from the head of the file.

    Raises UnreadableImage as `decode`, as far as that shows.
    """
    with opened(data) as image:
        width, height = image.size
        # note: Pillow has turned the size of a TIFF already
        is_other = upright != (image.format == "TIFF")
        return (height, width) if is_other and _orientation(image) in range(5, 9) else (width, height)


def lacking() -> dict[tuple[str, ...], str]:
    """Return the extensions of images that cannot be decoded here, with the package that they need."""
    return {suffixes: package for name, (package, suffixes, _) in _OF_PACKAGES.items() if name not in _FORMATS}


def _unknown(data: bytes) -> str:
    """Return why a file is in no format that is read here."""
    for name, (package, _, starts) in _OF_PACKAGES.items():
        if name not in _FORMATS and data[4:].startswith(starts):
            return f"a file of {name}, which needs {package}"
    return f"not a {', '.join(_FORMATS[:-1])} or {_FORMATS[-1]} file"


@contextmanager
def opened(data: bytes) -> Iterator[Image.Image]:
    """Open an image file's bytes, of which only the head is read; raises UnreadableImage as `decode`, inside too."""
    try:
        with warnings.catch_warnings():
            # note: Pillow warns about broken metadata and unusual transparency, which do not affect pixels
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
                if image.width * image.height > MOST_PIXELS:
                    raise Image.DecompressionBombError
                yield image
    except UnreadableImage:
        raise
    except Image.DecompressionBombError:
        raise UnreadableImage(f"more than {MOST_PIXELS // 10**6} million pixels") from None
    except UnidentifiedImageError:
        raise UnreadableImage(_unknown(data)) from None
    except OSError as error:
        raise UnreadableImage(error.strerror or str(error)) from None
    # note: decoders raise arbitrary errors on damaged files
    except Exception as error:
        raise UnreadableImage(f"{type(error).__name__} {error}".strip()) from None
