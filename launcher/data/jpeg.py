"""JPEGs: what their headers contain, and decoders that run in threads at once; imports no torch.

Decoders of whole images agree in every pixel, since all use libjpeg-turbo with the accurate transform, except FFCV's,
which uses its fast transform. The reader of FFCV files uses the fast one too wherever the decoder has it.
"""

import io
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from PIL import ExifTags, Image

from launcher.config.fields import edges
from launcher.config.schema import RunConfig
from launcher.data.crops import Box
from launcher.data.decode import MOST_PIXELS
from launcher.data.loaders.base import DecodingLoader
from launcher.errors import Problem, UserError
from launcher.installation import how_to_add

# The decoders; `auto` is the first one. This package requires all but FFCV.
DECODERS = ("simplejpeg", "pillow", "ffcv")
_BASELINE, _PROGRESSIVE = (0xC0, 0xC1), 0xC2
# Chroma is interpolated from its neighbours, which lie this many pixels beyond a crop.
CONTEXT = 2

# (JPEG, its height and width, scale in eighths) to RGB uint8, the edges rounded up; raises ValueError if it is damaged
Decode = Callable[[bytes, int, int, int], np.ndarray]


@dataclass(frozen=True)
class JpegDecoder:
    """A decoder; `stops_early` states whether it can decode the upper rows alone."""

    name: str
    decode: Decode
    stops_early: bool = False


class Frame(NamedTuple):
    """A JPEG's header: `place` is the offset of its height, `scan` that of its entropy code.

    `samplings` has the sampling factors of each component.
    """

    kind: int
    precision: int
    place: int
    height: int
    width: int
    samplings: bytes
    scan: int


def read_frame(data: bytes) -> Frame | None:
    """Read a JPEG's header up to its first scan, or return None if it has none (ITU-T T.81, section B.2)."""
    place, frame = 2, None
    try:
        while data[place] == 0xFF and data[:2] == b"\xff\xd8":
            marker, (length,) = data[place + 1], struct.unpack_from(">H", data, place + 2)
            if marker in (*_BASELINE, _PROGRESSIVE):
                precision, height, width, count = struct.unpack_from(">BHHB", data, place + 4)
                samplings = data[place + 11 : place + 11 + 3 * count : 3]
                frame = Frame(marker, precision, place + 5, height, width, samplings, 0)
            elif marker == 0xDA and frame is not None:
                return frame._replace(scan=place + 2 + length)
            place += 2 + length
    except (IndexError, struct.error):
        pass
    return None


def _is_baseline(frame: Frame) -> bool:
    """Return whether a JPEG is sequential, with Huffman codes."""
    return frame.kind in _BASELINE


def plain_frame(data: bytes, *, upright: bool) -> Frame | None:
    """Return the header of a JPEG that needs nothing but decoding; None for what Pillow must convert, turn or refuse.

    `upright` applies EXIF rotation.
    """
    frame = read_frame(data)
    if frame is None or frame.precision != 8 or len(frame.samplings) not in (1, 3) or not frame.height * frame.width:
        return None
    # note: entropy code contains no end marker, so a truncated file has none
    if data.rfind(b"\xff\xd9", frame.scan) < 0:
        return None
    if frame.height * frame.width > MOST_PIXELS or (upright and _is_turned(data, frame)):
        return None
    return frame


def _is_turned(data: bytes, frame: Frame) -> bool:
    """Return whether the metadata may rotate the image."""
    if data.find(b"Exif", 0, frame.scan) < 0 and data.find(b"Orientation", 0, frame.scan) < 0:
        return False
    try:
        with Image.open(io.BytesIO(data), formats=["JPEG"]) as image:
            return bool(image.getexif().get(ExifTags.Base.Orientation, 1) != 1)
    # note: metadata can be malformed in any way; Pillow's path decides what that means
    except Exception:
        return True


def fewest_eighths(height: int, width: int, size: int | Sequence[int]) -> int:
    """Return 1, 2, 4 or 8: the smallest scale in eighths at which a box has at least the pixels of `size`."""
    eighths, (rows, columns) = 1, edges(size)
    while eighths < 8 and (height * eighths < 8 * rows or width * eighths < 8 * columns):
        eighths *= 2
    return eighths


def scaled_box(top: int, left: int, height: int, width: int, eighths: int) -> tuple[int, int, int, int]:
    """Return (top, left, height, width) of a box in the image scaled by `eighths`, edges rounded to pixels."""
    new_top, new_left = (top * eighths + 4) // 8, (left * eighths + 4) // 8
    bottom, right = ((top + height) * eighths + 4) // 8, ((left + width) * eighths + 4) // 8
    return new_top, new_left, bottom - new_top, right - new_left


def decode_part(data: bytes, frame: Frame, box: Box, eighths: int, decoder: JpegDecoder) -> tuple[np.ndarray, Box]:
    """Return RGB pixels that contain a box of a JPEG at a scale, and the box in them.

    Rows below the box are not decoded where the decoder can stop early.

    Raises ValueError if the JPEG is damaged.
    """
    top, left, height, width, mirrored = box
    held = frame.height
    if decoder.stops_early and _is_baseline(frame):
        row = 8 * (max(one & 15 for one in frame.samplings) if len(frame.samplings) > 1 else 1)
        held = min(held, -(-(top + height + CONTEXT * 8 // eighths) // row) * row)
        if held < frame.height:
            data = data[: frame.place] + struct.pack(">H", held) + data[frame.place + 2 :]
    pixels = decoder.decode(data, held, frame.width, eighths)
    return pixels, (*scaled_box(top, left, height, width, eighths), mirrored)


def with_decoder(config: RunConfig) -> RunConfig:
    """Return the config with the decoder that `dataloader.decoder=auto` stands for on this machine.

    Raises UserError if the configured decoder is not installed.
    """
    loader = config.dataloader
    if not isinstance(loader, DecodingLoader):
        return config
    return replace(config, dataloader=replace(loader, decoder=installed(loader.decoder)))


def installed(name: str) -> Any:
    """Return the name of an installed decoder: `name`, or for `auto` the fastest.

    Raises UserError if it is not installed.
    """
    if name == "ffcv" and not find_spec(name):
        message = f"ffcv is not installed; run {how_to_add(name)}, or set dataloader.decoder=auto"
        raise UserError(Problem(message, "dataloader.decoder", name))
    return DECODERS[0] if name == "auto" else name


@cache
def decoder_of(name: str, *, fast: bool = False) -> JpegDecoder:
    """Return a decoder by its name; `fast` selects FFCV's transform where the decoder has it.

    Raises UserError if it is not installed.
    """
    make = {"simplejpeg": _simplejpeg, "ffcv": _ffcv}
    name = installed(name)
    return JpegDecoder(name, _by_pillow) if name == "pillow" else make[name](fast=fast)


def _simplejpeg(*, fast: bool) -> JpegDecoder:
    from simplejpeg import decode_jpeg

    def decode(data: bytes, height: int, width: int, eighths: int) -> np.ndarray:
        least = {"min_height": _eighths(height, eighths), "min_width": _eighths(width, eighths)} if eighths < 8 else {}
        # note: for class folders, libjpeg's warnings are no errors, as for Pillow
        return np.asarray(decode_jpeg(data, fastdct=fast, strict=fast, **least))

    return JpegDecoder("simplejpeg", decode, stops_early=True)


def _by_pillow(data: bytes, height: int, width: int, eighths: int) -> np.ndarray:
    try:
        with Image.open(io.BytesIO(data), formats=["JPEG"]) as image:
            if eighths < 8:
                image.draft("RGB", (max(1, width * eighths // 8), max(1, height * eighths // 8)))
            return np.array(image.convert("RGB"))
    except OSError as error:
        raise ValueError("damaged") from error


def _ffcv(*, fast: bool) -> JpegDecoder:
    # note: the first imports asyncio, which every verb would wait for
    from unittest.mock import patch

    import torch

    # note: importing FFCV sets torch to one thread, and spends seconds compiling a typed Dict that a dict can replace
    threads = torch.get_num_threads()
    with patch("numba.typed.Dict", dict):
        from ffcv.libffcv import imdecode
    torch.set_num_threads(threads)

    def decode(data: bytes, height: int, width: int, eighths: int) -> np.ndarray:
        pixels = np.empty((_eighths(height, eighths), _eighths(width, eighths), 3), np.uint8)
        source = np.frombuffer(data, np.uint8)
        if imdecode(source, pixels, height, width, height, width, 0, 0, eighths, 8, False, False):
            raise ValueError("damaged")
        return pixels

    return JpegDecoder("ffcv", decode)


def _eighths(length: int, eighths: int) -> int:
    return -(-length * eighths // 8)
