"""Decode the images of an FFCV file as FFCV does, and decode a rectangle of a JPEG alone.

A rectangle of blocks is cut out of a JPEG with restart markers without decoding it: between the markers the entropy
code restarts, so a stretch of blocks can be taken out of the stream, and the stretches of a rectangle, with a
header of its size, are a JPEG (ITU-T T.81, sections B.2 and E.1.4).
"""

import struct

import cv2
import numpy as np

from launcher.data.ffcv.beton import JPEG
from launcher.data.jpeg import CONTEXT, JpegDecoder, fewest_eighths, read_frame, scaled_box

_BLOCK = 16
_HALVED_CHROMA = b"\x22\x11\x11"

# note: the reader starts threads itself
cv2.setNumThreads(1)


def cut(
    data: bytes, top: int, left: int, height: int, width: int, whole_height: int, whole_width: int
) -> tuple[bytes, int, int, int, int] | None:
    """Return a JPEG that contains the box, and its (top, left, height, width); None if the JPEG cannot be cut.

    Only a baseline JPEG can be cut, with chroma at half the resolution and restart markers that divide its rows evenly.
    """
    frame, blocks = read_frame(data), -(-whole_width // _BLOCK)
    if frame is None or frame.kind > 0xC1 or frame.samplings != _HALVED_CHROMA:
        return None
    if not frame.interval or blocks % frame.interval:
        return None
    stretch, a_row = frame.interval * _BLOCK, blocks // frame.interval
    first_row = max(0, top - CONTEXT) // _BLOCK
    rows = -(-min(whole_height, top + height + CONTEXT) // _BLOCK)
    first = max(0, left - CONTEXT) // stretch
    beyond = -(-min(whole_width, left + width + CONTEXT) // stretch)
    code = np.frombuffer(data, np.uint8)[frame.scan :]
    ends = _ends(code)
    if len(ends) < rows * a_row:
        return None
    starts = np.concatenate([[0], ends[:-1] + 2])
    starts, ends = (places[: rows * a_row].reshape(rows, a_row)[first_row:, first:beyond] for places in (starts, ends))
    out = np.concatenate([code[start : end + 2] for start, end in zip(starts[:, 0], ends[:, -1], strict=True)])
    # note: the markers count from 0 to 7 and around, and the last stretch ends the image
    lengths = ends[:, -1] + 2 - starts[:, 0]
    places = (ends - starts[:, :1] + (np.cumsum(lengths) - lengths)[:, None]).ravel() + 1
    out[places] = 0xD0 + np.arange(len(places)) % 8
    out[-1] = 0xD9
    new_top, new_left = first_row * _BLOCK, first * stretch
    new_height = min(whole_height, rows * _BLOCK) - new_top
    new_width = min(whole_width, beyond * stretch) - new_left
    size = struct.pack(">HH", new_height, new_width)
    header = data[: frame.place] + size + data[frame.place + 4 : frame.scan]
    return header + out.tobytes(), new_top, new_left, new_height, new_width


def _ends(code: np.ndarray) -> np.ndarray:
    """Return the offsets of the markers in entropy code: restart markers and the end of the image."""
    places = np.flatnonzero(code[:-1] == 0xFF)
    following = code[places + 1]
    return np.asarray(places[(following & 0xF8 == 0xD0) | (following == 0xD9)])


def decode(
    data: bytes, row: np.void, box: np.ndarray, out: np.ndarray, decoder: JpegDecoder, *, only_crop: bool, scaled: bool
) -> None:
    """Decode a stored image of a row of the file's table, and write its crop to `out` [size, size, 3].

    box: int64 (top, left, height, width, mirrored). only_crop: decode only the blocks of the crop. scaled: decode at
    a smaller scale if the crop allows it.

    Raises ValueError if the image is damaged.
    """
    top, left, height, width, mirrored = box.tolist()
    held_height, held_width = int(row["height"]), int(row["width"])
    if row["mode"] == JPEG:
        if only_crop and (part := cut(data, top, left, height, width, held_height, held_width)):
            data, above, before, held_height, held_width = part
            top, left = top - above, left - before
        eighths = fewest_eighths(height, width, len(out)) if scaled else 8
        pixels = decoder.decode(data, held_height, held_width, eighths)
        if pixels.shape[:2] != tuple(-(-length * eighths // 8) for length in (held_height, held_width)):
            raise ValueError("another size than recorded")
        top, left, height, width = scaled_box(top, left, height, width, eighths)
    else:
        pixels = np.frombuffer(data, np.uint8).reshape(held_height, held_width, 3)
    crop = pixels[top : top + height, left : left + width]
    cv2.resize(crop, (len(out), len(out)), out, interpolation=cv2.INTER_AREA)
    if mirrored:
        cv2.flip(out, 1, out)
