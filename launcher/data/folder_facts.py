"""How large the pictures of a folder are, from a sample of them; imports no torch."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import numpy as np

from launcher.data.decode import NoPicture, size
from launcher.data.folder import Folder

_SAMPLE = 200


@dataclass(frozen=True)
class PictureFacts:
    """Bytes of all pictures, as far as a sample tells, and the median of their short sides in pixels."""

    total_bytes: int
    short_side: int


def picture_facts(folder: Folder) -> PictureFacts:
    """Look at up to 200 pictures at equal distances; those that cannot be read are left out."""
    numbers = np.linspace(0, len(folder.files) - 1, min(_SAMPLE, len(folder.files))).round().astype(int)
    sizes, sides = [], []
    for number in numbers:
        path = folder.root / folder.files[number]
        try:
            sides.append(min(size(path)))
            sizes.append(path.stat().st_size)
        except NoPicture:
            continue
    if not sizes:
        return PictureFacts(0, 0)
    return PictureFacts(round(statistics.fmean(sizes) * len(folder.files)), round(statistics.median(sides)))
