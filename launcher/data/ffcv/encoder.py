"""Encode images of FFCV files, as pixels or JPEGs, and store them, in worker processes; imports no torch."""

from collections.abc import Sequence
from pathlib import PurePosixPath

import cv2
import numpy as np
from PIL import Image

from launcher.compute import randomness
from launcher.data.decode import Decoded, UnreadableImage, decode
from launcher.data.ffcv.beton import JPEG, PIXELS
from launcher.data.ffcv.unfinished import Encoded, Form, UnfinishedFile
from launcher.data.loaders.ffcv import FFCVFile
from launcher.data.sources.reading import read_all
from launcher.data.sources.source import Files, Piece


def encode_all(
    files: Files, items: Sequence[tuple[int, Piece]], *, values: FFCVFile, upright: bool
) -> list[Encoded | UnreadableImage]:
    """Encode images by their positions in the data set, which determine whether one is stored as a JPEG.

    `upright` applies EXIF rotation.

    Raises UserError if the files cannot be read.
    """
    # note: OpenCV's own threads would compete with the other worker processes
    cv2.setNumThreads(1)
    numbers, pieces = zip(*items, strict=True)
    chances = randomness.uniforms(0, "jpeg", 0, np.array(numbers), 1)[:, 0]
    return [
        _encode(data, piece.name, values, upright=upright, as_jpeg=bool(chance < values.jpeg_share))
        for data, piece, chance in zip(read_all(files, pieces), pieces, chances, strict=True)
    ]


def _encode(
    data: bytes | UnreadableImage, name: str, values: FFCVFile, *, upright: bool, as_jpeg: bool
) -> Encoded | UnreadableImage:
    if isinstance(data, UnreadableImage):
        return data
    try:
        decoded = decode(data, upright=upright)
    except UnreadableImage as reason:
        return reason.with_traceback(None)
    original = _unusual(decoded, name)
    pixels = shrink(np.asarray(decoded.image), values.max_side)
    height, width = pixels.shape[:2]
    data = to_jpeg(pixels, values) if as_jpeg else pixels.tobytes()
    return Encoded(Form(JPEG if as_jpeg else PIXELS, width, height, len(data), original), data)


def shrink(pixels: np.ndarray, max_side: int) -> np.ndarray:
    """Scale uint8 [H, W, 3] down, by averaging areas, until height and width fit; rounds as FFCV does."""
    ratio = max_side / max(pixels.shape[:2])
    if ratio >= 1:
        return pixels
    size = (max(1, int(ratio * pixels.shape[1])), max(1, int(ratio * pixels.shape[0])))
    return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA))


def to_jpeg(pixels: np.ndarray, values: FFCVFile) -> bytes:
    """Encode uint8 RGB pixels [H, W, 3] as a JPEG with chroma at half the resolution."""
    parameters = [cv2.IMWRITE_JPEG_QUALITY, values.quality]
    done, data = cv2.imencode(".jpg", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR), parameters)
    assert done, "OpenCV encodes every uint8 image"
    return data.tobytes()


def _unusual(decoded: Decoded, name: str) -> str | None:
    """Describe an unusual but convertible image."""
    suffix = PurePosixPath(name).suffix.lower()
    # note: Pillow calls a JPEG of several images MPO
    kind = decoded.format.replace("MPO", "JPEG")
    parts = [f"{kind} named {suffix}"] if kind != Image.registered_extensions().get(suffix) else []
    parts += [decoded.mode] if decoded.mode != "RGB" else []
    parts += ["turned upright"] if decoded.turned else []
    return ", ".join(parts) or None


def store_all(
    items: Sequence[tuple[int, Piece, int | None]],
    unfinished: UnfinishedFile,
    files: Files,
    values: FFCVFile,
    *,
    upright: bool,
) -> list[str | None]:
    """Encode and store images, given the bytes of each file, in a worker; return why one cannot be decoded, or None.

    Raises as `encode_all`, and OSError.
    """
    images = encode_all(files, [(number, piece) for number, piece, _ in items], values=values, upright=upright)
    for (number, _, size), image in zip(items, images, strict=True):
        if isinstance(image, Encoded):
            unfinished.place(number, image.form, size)
            unfinished.store(number, image.data)
    return [str(image) if isinstance(image, UnreadableImage) else None for image in images]
