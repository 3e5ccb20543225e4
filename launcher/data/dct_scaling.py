"""How small a JPEG may be decoded: an inverse DCT of fewer coefficients gives 1/2, 1/4 or 1/8 of its size at once;
compiled by numba.

libjpeg-turbo has other eighths too, but in plain C, which costs as much as the full transform.
"""

from __future__ import annotations

from numba import njit


@njit(nogil=True)
def fewest_eighths(height: int, width: int, side: int) -> int:
    """1, 2, 4 or 8: the smallest scale at which a box of that size is at least `side` pixels high and wide; else 8."""
    eighths = 1
    while eighths < 8 and min(height, width) * eighths < 8 * side:
        eighths *= 2
    return eighths


@njit(nogil=True)
def scaled_box(top: int, left: int, height: int, width: int, eighths: int) -> tuple[int, int, int, int]:
    """(top, left, height, width) of a box in the picture scaled by `eighths`, its edges rounded to whole pixels."""
    new_top, new_left = (top * eighths + 4) // 8, (left * eighths + 4) // 8
    bottom, right = ((top + height) * eighths + 4) // 8, ((left + width) * eighths + 4) // 8
    return new_top, new_left, bottom - new_top, right - new_left
