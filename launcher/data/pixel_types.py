"""Images of any number of channels, of 8, 16 or 32 bits, as files store them: TIFF, PNG, arrays; imports no torch."""

from __future__ import annotations

import io
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from launcher.data.decode import MOST_PIXELS, UnreadableImage, decode, opened, size, stored

if TYPE_CHECKING:
    from launcher.config.schema import Dataset

# Extensions that only images of other types than 8-bit RGB have.
ARRAYS = (".npy",)
_NUMPY, _PNG = b"\x93NUMPY", b"\x89PNG\r\n\x1a\n"
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_MOST_VALUES = 4 * MOST_PIXELS  # of a TIFF that Pillow does not read
_BITS, _SAMPLES, _EXTRA = 258, 277, 338  # tags of TIFF
_ALPHA = (2,)  # the extra sample of a TIFF that Pillow reads as it is
_ORDER = {3: [2, 1, 0], 4: [2, 1, 0, 3]}  # of OpenCV's channels


class OtherType(UnreadableImage):
    """An image has other channels than the data set."""


@dataclass(frozen=True)
class PixelType:
    """The channels of all images of a data set, and the type of their files."""

    channels: int = 3
    dtype: str = "uint8"

    @classmethod
    def of(cls, dataset: Dataset) -> Self:
        """Return that of a data set."""
        return cls(dataset.channels, dataset.dtype)

    @property
    def is_rgb(self) -> bool:
        """Whether images are RGB of 8 bits, to which files of other kinds are converted."""
        return self == RGB

    @property
    def loaded(self) -> str:
        """The type of loaded pixels: 16 bits are exact in float32, in which crops are resized."""
        return "uint8" if self.dtype == "uint8" else "float32"

    @property
    def extensions(self) -> tuple[str, ...]:
        """The extensions of images besides the usual ones."""
        return () if self.is_rgb else ARRAYS

    def edges(self, data: bytes, *, upright: bool = False) -> tuple[int, int]:
        """Return height and width of an image as it is stored, or `upright`.

        Raises UnreadableImage as far as this reads the file.
        """
        if self.is_rgb:
            width, height = size(data, upright=upright)
            return height, width
        height, width, _ = self.read(data, upright=upright).shape
        return height, width

    def read(self, data: bytes, *, upright: bool) -> np.ndarray:
        """Decode an image's file to [H, W, channels] of the type `loaded`; `upright` applies its EXIF rotation.

        Raises UnreadableImage as `decode`, OtherType if the file has another type, and if a value is not finite.
        """
        if self.is_rgb:
            return np.array(decode(data, upright=upright).image)
        return self.checked(_pixels(data, upright=upright))

    def checked(self, pixels: np.ndarray) -> np.ndarray:
        """Return pixels [H, W] or [H, W, C] as `read` does; raises OtherType and UnreadableImage as it."""
        pixels = pixels[..., None] if pixels.ndim == 2 else pixels
        if pixels.ndim != 3 or (pixels.shape[2], pixels.dtype.name) != (self.channels, self.dtype):
            has = f"channels={pixels.shape[2]} dataset.dtype={pixels.dtype}" if pixels.ndim == 3 else "channels"
            shape = "" if pixels.ndim == 3 else f" [H, W, C], but the shape {[*pixels.shape]}"
            raise OtherType(f"it has dataset.{has}{shape}, not {self.channels} of {self.dtype}")
        if pixels.dtype.kind == "f" and not np.isfinite(pixels).all():
            raise UnreadableImage("it has values that are not finite")
        return np.array(pixels, self.loaded)


RGB = PixelType()


def is_array(data: bytes) -> bool:
    """Return whether a file's bytes are an array of NumPy."""
    return data.startswith(_NUMPY)


def array_of(data: bytes) -> np.ndarray:
    """Return the array of a file's bytes, in this machine's byte order; raises UnreadableImage."""
    try:
        array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    # note: any error of a damaged file
    except Exception as error:
        raise UnreadableImage(f"no array of numbers ({error})") from None
    if not array.size or not np.issubdtype(array.dtype, np.number) or np.iscomplexobj(array):
        raise UnreadableImage(f"an array of {array.dtype} of shape {array.shape}, not of numbers")
    return np.asarray(array.astype(array.dtype.newbyteorder("="), copy=False))


def _pixels(data: bytes, *, upright: bool) -> np.ndarray:
    """Decode a file to what it stores, [H, W] or [H, W, channels]."""
    if is_array(data):
        return array_of(data)
    if data[:4] in _TIFF and not _is_plain(data):
        return _of_tiff(data)
    # note: Pillow drops the lower bits of several channels with 16; byte 24 has the bits, byte 25 is 0 for gray
    if data.startswith(_PNG) and data[24:25] == b"\x10" and data[25:26] != b"\0":
        return _of_png(data)
    return stored(data, upright=upright)


def _is_plain(data: bytes) -> bool:
    """Return whether Pillow drops nothing of a TIFF: one channel, or 8-bit RGB, or 8 bits with alpha."""
    with suppress(UnreadableImage), opened(data) as image:
        tags: Any = getattr(image, "tag_v2", {})
        channels, bits = tags.get(_SAMPLES, 1), max(tags.get(_BITS, (1,)))
        return bool(channels == 1 or (bits == 8 and (channels == 3 or tags.get(_EXTRA) == _ALPHA)))
    return False


def _of_tiff(data: bytes) -> np.ndarray:
    """Decode a TIFF as it is stored, [H, W, channels], without its rotation."""
    try:
        import tifffile
    except ImportError:
        message = "a TIFF that is damaged, or not 8-bit RGB with several channels, which needs the package tifffile"
        raise UnreadableImage(message) from None
    try:
        with tifffile.TiffFile(io.BytesIO(data)) as file:
            series = file.series[0]
            if series.size > _MOST_VALUES:
                raise UnreadableImage(f"more than {_MOST_VALUES // 10**6} million values")
            axes, pixels = series.axes, np.asarray(series.asarray())
        # note: channels are samples, or planes in any order
        return pixels if pixels.ndim < 3 else np.moveaxis(pixels, (axes.index("Y"), axes.index("X")), (0, 1))
    except UnreadableImage:
        raise
    # note: any error of a damaged file
    except Exception as error:
        raise UnreadableImage(f"no TIFF that can be read ({error})") from None


def _of_png(data: bytes) -> np.ndarray:
    """Decode a PNG of several channels with 16 bits, [H, W, channels]."""
    import cv2

    if int.from_bytes(data[16:20]) * int.from_bytes(data[20:24]) > MOST_PIXELS:
        raise UnreadableImage(f"more than {MOST_PIXELS // 10**6} million pixels")
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if pixels is None:
        raise UnreadableImage("a damaged PNG")
    return np.asarray(pixels[..., _ORDER[pixels.shape[2]]] if pixels.ndim == 3 else pixels)
