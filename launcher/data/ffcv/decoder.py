"""Decode with FFCV's kernels and crops from the keyed generator; the only file that imports FFCV.

A rectangle of blocks is cut out of a JPEG with restart markers without decoding it: between the markers the entropy
code restarts, so a stretch of blocks can be taken out of the stream, and the stretches of a rectangle, with a
header of its size, are a JPEG (ITU-T T.81, sections B.2 and E.1.4).
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numba import njit

from launcher.data.ffcv.beton import JPEG

# note: importing FFCV sets torch to one thread, and spends seconds compiling a typed Dict that a dict can replace
_threads = torch.get_num_threads()
with patch("numba.typed.Dict", dict):
    from ffcv.libffcv import imdecode, read, resize_crop
    from ffcv.pipeline.compiler import Compiler

torch.set_num_threads(_threads)

_BLOCK = 16
# Chroma is interpolated from its neighbours, which lie this many pixels beyond a crop.
_CONTEXT = 2

# A thread's state to read images: the open file, offsets and sizes of its images, and a buffer.
State = tuple[int, np.ndarray, np.ndarray, np.ndarray]


@njit(nogil=True)
def fewest_eighths(height: int, width: int, size: int) -> int:
    """Return 1, 2, 4 or 8: the smallest scale in eighths at which a box is at least `size` pixels high and wide."""
    eighths = 1
    while eighths < 8 and min(height, width) * eighths < 8 * size:
        eighths *= 2
    return eighths


@njit(nogil=True)
def scaled_box(top: int, left: int, height: int, width: int, eighths: int) -> tuple[int, int, int, int]:
    """Return (top, left, height, width) of a box in the image scaled by `eighths`, edges rounded to pixels."""
    new_top, new_left = (top * eighths + 4) // 8, (left * eighths + 4) // 8
    bottom, right = ((top + height) * eighths + 4) // 8, ((left + width) * eighths + 4) // 8
    return new_top, new_left, bottom - new_top, right - new_left


@njit(nogil=True)
def _number(data: np.ndarray, place: int) -> Any:
    """Read a big-endian 16-bit number."""
    # note: numba's int() of a byte is unsigned, and unsigned with signed makes a float
    return np.int64(data[place]) * 256 + np.int64(data[place + 1])


@njit(nogil=True)
def scan_layout(data: np.ndarray) -> tuple[int, int, int, int]:
    """Return (start of the entropy code, offset of the height in the header, blocks per row, restart interval).

    All 0 if the JPEG cannot be cut: not baseline, chroma not at half the resolution, or no restart markers that
    divide its rows evenly.
    """
    place, size, blocks, interval = 2, 0, 0, 0
    while place + 10 < len(data) and data[place] == 0xFF:
        marker, length = data[place + 1], _number(data, place + 2)
        if marker == 0xC0 or marker == 0xC1:
            size = place + 5
            if data[size + 4] != 3 or data[size + 6] != 0x22 or data[size + 9] != 0x11 or data[size + 12] != 0x11:
                return 0, 0, 0, 0
            blocks = (_number(data, size + 2) + _BLOCK - 1) // _BLOCK
        elif marker == 0xDD:
            interval = _number(data, place + 4)
        elif marker == 0xDA:
            if size == 0 or interval == 0 or blocks % interval != 0 or place + 2 + length > len(data):
                return 0, 0, 0, 0
            return place + 2 + length, size, blocks, interval
        place += 2 + length
    return 0, 0, 0, 0


@njit(nogil=True)
def cut(
    data: np.ndarray, top: int, left: int, height: int, width: int, whole_height: int, whole_width: int, out: np.ndarray
) -> tuple[int, int, int, int, int]:
    """Write a JPEG that contains the box to `out`; return its (bytes, top, left, height, width).

    0 bytes if the JPEG cannot be cut.
    """
    start, size, blocks, interval = scan_layout(data)
    if start == 0:
        return 0, 0, 0, 0, 0
    stretch = interval * _BLOCK
    a_row = blocks // interval
    first_row = max(0, top - _CONTEXT) // _BLOCK
    last_row = (min(whole_height, top + height + _CONTEXT) - 1) // _BLOCK
    first = max(0, left - _CONTEXT) // stretch
    last = (min(whole_width, left + width + _CONTEXT) - 1) // stretch
    new_top, new_left = first_row * _BLOCK, first * stretch
    new_height = min(whole_height, (last_row + 1) * _BLOCK) - new_top
    new_width = min(whole_width, (last + 1) * stretch) - new_left

    # note: a slice assignment would double numba's compile time, for its error message
    for place, byte in enumerate(data[:start]):
        out[place] = byte
    out[size], out[size + 1] = new_height >> 8, new_height & 0xFF
    out[size + 2], out[size + 3] = new_width >> 8, new_width & 0xFF
    end = _stretches(data, start, first_row * a_row, (last_row + 1) * a_row, a_row, first, last, out)
    return end, new_top, new_left, new_height, new_width


@njit(nogil=True)
def _stretches(
    data: np.ndarray, place: int, first: int, beyond: int, a_row: int, left: int, right: int, out: np.ndarray
) -> int:
    """Copy stretches first to beyond - 1 at row positions left to right; return the end in `out`."""
    end, number, written = place, 0, 0
    start = place
    while place + 1 < len(data):
        if data[place] != 0xFF:
            place += 1
            continue
        following = data[place + 1]
        if following == 0x00 or not (0xD0 <= following <= 0xD7 or following == 0xD9):
            place += 2
            continue
        if number >= first and left <= number % a_row <= right:
            if written:
                out[end], out[end + 1] = 0xFF, 0xD0 + (written - 1) % 8
                end += 2
            stretch = out[end:]
            for at, byte in enumerate(data[start:place]):
                stretch[at] = byte
            end += place - start
            written += 1
        number += 1
        place += 2
        start = place
        if number >= beyond or following == 0xD9:
            break
    out[end], out[end + 1] = 0xFF, 0xD9
    return end + 2


_read_at = Compiler.compile(read)


@njit(nogil=True)
def _read_image(address: int, state: State) -> np.ndarray:
    """Read the bytes stored at an address, by pread; empty if the file ends earlier.

    FFCV's memory map would kill the process if the file is truncated meanwhile, and its managers mark numba's type of
    byte arrays as read-only in the whole process.
    """
    places, low, high = state[1], 0, len(state[1])
    # note: numba spends seconds compiling np.searchsorted
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if places[middle] <= address else (low, middle)
    data: np.ndarray = state[3][: state[2][low]]
    if _read_at(state[0], data, address) != len(data):
        return data[:0]
    return data


@njit(nogil=True)
def mirror(pixels: np.ndarray) -> None:
    """Mirror uint8 [H, W, 3] left to right, in place."""
    height, width, _ = pixels.shape
    for row in range(height):
        for column in range(width // 2):
            for channel in range(3):
                other = pixels[row, width - 1 - column, channel]
                pixels[row, width - 1 - column, channel] = pixels[row, column, channel]
                pixels[row, column, channel] = other


_decode_jpeg, _resize = Compiler.compile(imdecode), Compiler.compile(resize_crop)


@njit(nogil=True)
def _pixels_of(
    data: np.ndarray,
    row: Any,
    box: np.ndarray,
    size: int,
    pixels: np.ndarray,
    jpeg: np.ndarray,
    only_crop: bool,
    scaled: bool,
) -> tuple[np.ndarray, int, int, int, int]:
    """Return (RGB [H, W, 3] of at least an image's box, and the box in it); no rows if the image is damaged."""
    top, left, height, width = box[0], box[1], box[2], box[3]
    held_height: Any = np.int64(row["height"])
    held_width: Any = np.int64(row["width"])
    if row["mode"] == JPEG:
        if only_crop:
            written, above, before, part_height, part_width = cut(
                data, top, left, height, width, held_height, held_width, jpeg
            )
            if written > 0:
                data = jpeg[:written]
                top, left = top - above, left - before
                held_height, held_width = part_height, part_width
        eighths = fewest_eighths(height, width, size) if scaled else 8
        if _decode_jpeg(data, pixels, held_height, held_width, held_height, held_width, 0, 0, eighths, 8, False, False):
            held_height = 0
        top, left, height, width = scaled_box(top, left, height, width, eighths)
        held_height, held_width = (held_height * eighths + 7) // 8, (held_width * eighths + 7) // 8
        data = pixels[: 3 * held_height * held_width]
    elif len(data) != 3 * held_height * held_width:
        data, held_height = data[:0], 0
    return data.reshape(held_height, held_width, 3), top, left, height, width


@njit(nogil=True)
def decode(
    indices: np.ndarray,
    boxes: np.ndarray,
    destination: np.ndarray,
    pixels: np.ndarray,
    jpeg: np.ndarray,
    rows: np.ndarray,
    state: State,
    only_crop: bool,
    scaled: bool,
) -> int:
    """Decode, crop and resize RGB images as FFCV does; return the position of the first damaged one, or -1.

    indices: int64 [N]. boxes: int64 [N, 5], (top, left, height, width, mirrored). destination: [N, size, size, 3].
    pixels and jpeg: buffers for an image's pixels and JPEG. rows: of all images. only_crop: decode only the blocks of
    the crop. scaled: decode at a smaller scale if the crop allows it.
    """
    for place in range(len(indices)):
        row, box = rows[indices[place]], boxes[place]
        data = _read_image(row["place"], state)
        image, top, left, height, width = _pixels_of(
            data, row, box, destination.shape[1], pixels, jpeg, only_crop, scaled
        )
        if len(image) == 0:
            return place
        _resize(image, top, top + height, left, left + width, destination[place])
        if box[4]:
            mirror(destination[place])
    return -1
