"""FFCV's reader and kernels with crops that come from the keyed generator; the only file that imports FFCV."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any
from unittest.mock import patch

import numba as nb
import numpy as np
import torch
from numba import njit

from launcher.data.ffcv.jpeg_crop import cut

# note: importing FFCV sets torch to one thread in the whole process, and compiles for seconds what a dict does too
_threads = torch.get_num_threads()
with patch("numba.typed.Dict", dict):
    from ffcv.fields.rgb_image import IMAGE_MODES, SimpleRGBImageDecoder
    from ffcv.libffcv import imdecode, read, resize_crop
    from ffcv.pipeline.compiler import Compiler
    from ffcv.reader import Reader

torch.set_num_threads(_threads)

__all__ = ["ImageBytes", "KeyedCropDecoder", "Reader", "compiled_decode"]


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

# (indices, boxes, destination, pixels, jpeg, metadata, storage state, only_crop, scaled) -> place of the first failure,
# or -1
Decode = Callable[
    [np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, tuple[Any, ...], bool, bool], int
]


class KeyedCropDecoder(SimpleRGBImageDecoder):
    """FFCV's decoding, cropping and resizing of RGB images, with boxes as arguments instead of drawing them.

    The compiled code takes indices int64 [N], boxes int64 [N, 5] (top, left, height, width, mirrored), the destination
    uint8 [N, side, side, 3], room for the pixels of an image and for its JPEG, FFCV's metadata and storage state,
    whether to decode only what the crop needs, and whether to decode at a smaller scale where the crop allows it.
    It returns the place of the first image that is damaged, or -1.
    """

    def generate_code(self) -> Decode:
        jpeg_mode = IMAGE_MODES["jpg"]
        read_image = self.memory_read
        decode_jpeg, resize = Compiler.compile(imdecode), Compiler.compile(resize_crop)

        def decode(
            indices: np.ndarray,
            boxes: np.ndarray,
            destination: np.ndarray,
            pixels: np.ndarray,
            jpeg: np.ndarray,
            metadata: np.ndarray,
            state: tuple[Any, ...],
            only_crop: bool,
            scaled: bool,
        ) -> int:
            for place in range(len(indices)):
                field = metadata[indices[place]]
                data = read_image(field["data_ptr"], state)
                whole_height: Any = np.int64(field["height"])
                whole_width: Any = np.int64(field["width"])
                top, left, height, width = boxes[place, 0], boxes[place, 1], boxes[place, 2], boxes[place, 3]
                held_height, held_width = whole_height, whole_width
                if field["mode"] == jpeg_mode:
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

        return decode


@nb.njit(nogil=True)
def mirror(pixels: np.ndarray) -> None:
    """Mirror uint8 [H, W, 3] left to right, in place."""
    height, width, _ = pixels.shape
    for row in range(height):
        for column in range(width // 2):
            for channel in range(3):
                other = pixels[row, width - 1 - column, channel]
                pixels[row, width - 1 - column, channel] = pixels[row, column, channel]
                pixels[row, column, channel] = other


class ImageBytes:
    """Reads each image's bytes with FFCV's pread, into room that each thread has for itself.

    FFCV's own ways are none for us: its memory map ends the process when the file is cut off while it is read, and
    both of its managers mark numba's type of byte arrays as read-only for the whole process. Without a map it reads
    pages of 8 MiB, made for an order that keeps to few pages at a time.
    """

    def __init__(self, reader: Reader, file: int):
        self.file = file
        self.places, self.sizes = _places(reader)

    def state(self) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
        """FFCV's storage state, one for each thread: file, places and sizes, and room for the bytes read last."""
        return self.file, self.places, self.sizes, np.empty(int(self.sizes.max()), np.uint8)


@nb.njit(nogil=True)
def _read_image(address: int, state: tuple[Any, ...]) -> np.ndarray:
    """The bytes stored at an address; none if the file ends before."""
    places, low, high = state[1], 0, len(state[1])
    # note: numba compiles numpy's search for seconds
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if places[middle] <= address else (low, middle)
    data: np.ndarray = state[3][: state[2][low]]
    if _read_at(state[0], data, address) != len(data):
        return data[:0]
    return data


def _places(reader: Reader) -> tuple[np.ndarray, np.ndarray]:
    """Place and size of each stored piece, in the order of places."""
    order = np.argsort(reader.alloc_table["ptr"])
    return reader.alloc_table["ptr"][order], reader.alloc_table["size"][order]


@cache
def compiled_decode() -> Decode:
    """The decoder's machine code; compiled at the first call, once a process."""
    decoder = KeyedCropDecoder()
    decoder.accept_globals(None, _read_image)
    code: Decode = Compiler.compile(decoder.generate_code())
    return code
