"""Decode the images of an FFCV file as FFCV does."""

import cv2
import numpy as np

from launcher.data.crops import Fill, place_inside
from launcher.data.ffcv.beton import JPEG
from launcher.data.jpeg import JpegDecoder, fewest_eighths, scaled_box

# note: the reader starts threads itself
cv2.setNumThreads(1)


def decode(
    data: bytes, row: np.void, box: np.ndarray, out: np.ndarray, decoder: JpegDecoder, *, scaled: bool, fill: Fill
) -> None:
    """Decode a stored image of a row of the file's table, and write its crop to `out` [height, width, 3].

    box: int64 (top, left, height, width, mirrored). scaled: decode at a smaller scale if the crop allows it. fill: of
    the pixels around the crop, if it keeps its ratio.

    Raises ValueError if the image is damaged.
    """
    top, left, height, width, mirrored = box.tolist()
    held_height, held_width = int(row["height"]), int(row["width"])
    if row["mode"] == JPEG:
        eighths = fewest_eighths(height, width, out.shape[:2]) if scaled else 8
        pixels = decoder.decode(data, held_height, held_width, eighths)
        if pixels.shape[:2] != tuple(-(-length * eighths // 8) for length in (held_height, held_width)):
            raise ValueError("another size than recorded")
        top, left, height, width = scaled_box(top, left, height, width, eighths)
    else:
        pixels = np.frombuffer(data, np.uint8).reshape(held_height, held_width, 3)
    crop = pixels[top : top + height, left : left + width]
    if fill is not None:
        out[:] = fill
        out = out[place_inside(height, width, out.shape[:2])]
    cv2.resize(crop, (out.shape[1], out.shape[0]), out, interpolation=cv2.INTER_AREA)
    if mirrored:
        cv2.flip(out, 1, out)
