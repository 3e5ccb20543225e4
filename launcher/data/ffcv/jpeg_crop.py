"""Cuts a rectangle of blocks out of a JPEG with restart markers, without decoding it; compiled by numba.

Between restart markers the entropy code starts afresh, so a stretch of blocks can be taken out of the stream, and the
stretches of a rectangle, with a header of its size, are a JPEG (ITU-T T.81, sections B.2 and E.1.4).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

_BLOCK = 16
# Chroma is interpolated from its neighbours, which lie this many pixels beyond a crop.
_CONTEXT = 2


@njit(nogil=True)
def _number(data: np.ndarray, place: int) -> Any:
    """Two bytes, the higher first."""
    # note: numba's int() of a byte is unsigned, and unsigned with signed makes a float
    return np.int64(data[place]) * 256 + np.int64(data[place + 1])


@njit(nogil=True)
def scan_layout(data: np.ndarray) -> tuple[int, int, int, int]:
    """(start of the entropy code, place of the height in the header, blocks a row, restart interval).

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
    """Write a JPEG that holds the box to `out`; returns (bytes, top, left, height, width) of what it holds.

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

    # note: with an assignment of slices numba would compile the words of its error, for as long as all else here
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
    """Copy the stretches first to beyond - 1 whose place in the row is left to right; returns the end in `out`."""
    end, number, written = place, 0, 0
    begin = place
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
            for at, byte in enumerate(data[begin:place]):
                stretch[at] = byte
            end += place - begin
            written += 1
        number += 1
        place += 2
        begin = place
        if number >= beyond or following == 0xD9:
            break
    out[end], out[end + 1] = 0xFF, 0xD9
    return end + 2
