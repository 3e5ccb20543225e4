"""One picture as an FFCV file stores it: RGB, of bounded size, as pixels or as a JPEG; imports no torch."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import cv2
import numpy as np
from PIL import Image

from launcher import randomness
from launcher.config.schema import FFCVFile
from launcher.data.decode import Decoded, UnreadableImage, decode
from launcher.data.ffcv.file import JPEG, PIXELS
from launcher.data.sources.source import Files, Piece


@dataclass(frozen=True)
class Encoded:
    """A stored picture: `data` is a JPEG or RGB pixels in rows, `was` what it was converted from, if anything."""

    mode: int
    width: int
    height: int
    data: bytes
    was: str | None


@dataclass(frozen=True)
class Unreadable:
    """Why a picture cannot be stored."""

    reason: str


def encode_all(
    files: Files, pieces: Sequence[Piece], numbers: Sequence[int], values: FFCVFile, *, upright: bool
) -> list[Encoded | Unreadable]:
    """Encode some pictures; `numbers` are their places in the data set, which decide who is stored as a JPEG.

    `upright` turns pictures as their EXIF data say.

    Raises:
        UserError: the files cannot be read.
    """
    # note: OpenCV's own threads would compete with the other worker processes
    cv2.setNumThreads(1)
    chances = randomness.uniforms(0, "jpeg", 0, np.array(numbers), 1)[:, 0]
    return [
        _encode(data, piece.name, values, upright=upright, as_jpeg=bool(chance < values.jpeg_share))
        for data, piece, chance in zip(files.read(pieces), pieces, chances, strict=True)
    ]


def _encode(
    data: bytes | UnreadableImage, name: str, values: FFCVFile, *, upright: bool, as_jpeg: bool
) -> Encoded | Unreadable:
    try:
        if isinstance(data, UnreadableImage):
            raise data
        decoded = decode(io.BytesIO(data), upright=upright)
    except UnreadableImage as reason:
        return Unreadable(str(reason))
    was = _unusual(decoded, name)
    pixels = shrink(np.asarray(decoded.picture), values.max_side)
    height, width = pixels.shape[:2]
    if not as_jpeg:
        return Encoded(PIXELS, width, height, pixels.tobytes(), was)
    return Encoded(JPEG, width, height, to_jpeg(pixels, values), was)


def shrink(pixels: np.ndarray, max_side: int) -> np.ndarray:
    """Scale uint8 [H, W, 3] down, by averaging areas, until no side is longer; sides as FFCV rounds them."""
    ratio = max_side / max(pixels.shape[:2])
    if ratio >= 1:
        return pixels
    size = (max(1, int(ratio * pixels.shape[1])), max(1, int(ratio * pixels.shape[0])))
    return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA))


def to_jpeg(pixels: np.ndarray, values: FFCVFile) -> bytes:
    """A JPEG of uint8 RGB pixels [H, W, 3], chroma at half the resolution."""
    parameters = [cv2.IMWRITE_JPEG_QUALITY, values.quality]
    if values.restart_interval:
        parameters += [cv2.IMWRITE_JPEG_RST_INTERVAL, aligned_interval(pixels.shape[1], values.restart_interval)]
    done, data = cv2.imencode(".jpg", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR), parameters)
    assert done, "OpenCV encodes every uint8 picture"
    return data.tobytes()


def aligned_interval(width: int, most: int) -> int:
    """The longest restart interval of at most `most` blocks of 16 pixels that divides each row of blocks evenly."""
    blocks = -(-width // 16)
    return next(interval for interval in range(min(most, blocks), 0, -1) if blocks % interval == 0)


def _unusual(picture: Decoded, name: str) -> str | None:
    """What is unusual about a picture that can be converted all the same."""
    suffix = PurePosixPath(name).suffix.lower()
    # note: Pillow calls a JPEG of several pictures MPO
    format_, named = picture.format.replace("MPO", "JPEG"), Image.registered_extensions().get(suffix)
    kind = f"{format_} named {suffix}" if format_ != named else None
    turned = "turned upright" if picture.turned else None
    parts: list[str] = [part for part in (kind, picture.mode if picture.mode != "RGB" else None, turned) if part]
    return ", ".join(parts) or None
