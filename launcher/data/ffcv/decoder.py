"""FFCV's kernels with crops that come from the keyed generator; the only file that imports FFCV."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numba import njit

from launcher.data.ffcv.beton import JPEG
from launcher.data.ffcv.jpeg_crop import cut

# note: importing FFCV sets torch to one thread in the whole process, and compiles for seconds what a dict does too
_threads = torch.get_num_threads()
with patch("numba.typed.Dict", dict):
    from ffcv.libffcv import imdecode, read, resize_crop
    from ffcv.pipeline.compiler import Compiler

torch.set_num_threads(_threads)

# What a thread reads images by: the open file, places and sizes of its pieces, and room for the bytes read last.
State = tuple[int, np.ndarray, np.ndarray, np.ndarray]


@njit(nogil=True)
def fewest_eighths(height: int, width: int, side: int) -> int:
    """1, 2, 4 or 8: the smallest scale at which a box of that size is at least `side` pixels high and wide; else 8."""
    eighths = 1
    while eighths < 8 and min(height, width) * eighths < 8 * side:
        eighths *= 2
    return eighths


@njit(nogil=True)
def scaled_box(top: int, left: int, height: int, width: int, eighths: int) -> tuple[int, int, int, int]:
    """(top, left, height, width) of a box in the image scaled by `eighths`, its edges rounded to whole pixels."""
    new_top, new_left = (top * eighths + 4) // 8, (left * eighths + 4) // 8
    bottom, right = ((top + height) * eighths + 4) // 8, ((left + width) * eighths + 4) // 8
    return new_top, new_left, bottom - new_top, right - new_left


_read_at = Compiler.compile(read)


@njit(nogil=True)
def _read_image(address: int, state: State) -> np.ndarray:
    """Read the bytes stored at an address, by pread; none if the file ends before.

    FFCV's own ways do not fit: its memory map ends the process when the file is cut off while it is read, and both of
    its managers mark numba's type of byte arrays as read-only for the whole process.
    """
    places, low, high = state[1], 0, len(state[1])
    # note: numba compiles numpy's search for seconds
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


# (indices, boxes, destination, pixels, jpeg, rows, state, only_crop, scaled) -> place of the first failure, or -1
Decode = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, State, bool, bool], int]


@cache
def compiled_decode() -> Decode:
    """Return FFCV's decoding, cropping and resizing of RGB images, with boxes as arguments; compiled at the first call.

    It takes indices int64 [N], boxes int64 [N, 5] (top, left, height, width, mirrored), the destination uint8 [N, side,
    side, 3], room for the pixels of an image and for its JPEG, the images' rows, the thread's state, whether to decode
    only what the crop needs, and whether to decode at a smaller scale where the crop allows it. It returns the place of
    the first image that is damaged, or -1.
    """
    decode_jpeg, resize = Compiler.compile(imdecode), Compiler.compile(resize_crop)

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
        for place in range(len(indices)):
            row = rows[indices[place]]
            data = _read_image(row["place"], state)
            whole_height: Any = np.int64(row["height"])
            whole_width: Any = np.int64(row["width"])
            top, left, height, width = boxes[place, 0], boxes[place, 1], boxes[place, 2], boxes[place, 3]
            held_height, held_width = whole_height, whole_width
            if row["mode"] == JPEG:
                if only_crop:
                    size, above, before, part_height, part_width = cut(
                        data, top, left, height, width, whole_height, whole_width, jpeg
                    )
                    if size > 0:
                        data = jpeg[:size]
                        top, left = top - above, left - before
                        held_height, held_width = part_height, part_width
                eighths = fewest_eighths(height, width, destination.shape[1]) if scaled else 8
                if decode_jpeg(
                    data, pixels, held_height, held_width, held_height, held_width, 0, 0, eighths, 8, False, False
                ):
                    return place
                top, left, height, width = scaled_box(top, left, height, width, eighths)
                held_height, held_width = (held_height * eighths + 7) // 8, (held_width * eighths + 7) // 8
                image = pixels[: 3 * held_height * held_width].reshape(held_height, held_width, 3)
            else:
                if len(data) != 3 * whole_height * whole_width:
                    return place
                image = data.reshape(whole_height, whole_width, 3)
            resize(image, top, top + height, left, left + width, destination[place])
            if boxes[place, 4]:
                mirror(destination[place])
        return -1

    code: Decode = Compiler.compile(decode)
    return code
