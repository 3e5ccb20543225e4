"""Validation and test images that look like a training image, by a perceptual hash; imports no torch.

The hash is pHash: the signs of the low frequencies of a small gray image against their median (Zauner 2010).
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache

import numpy as np
from PIL import Image

from launcher.counts import count_of
from launcher.data.decode import UnreadableImage, decode
from launcher.data.index import Images, Piece
from launcher.data.sources.reading import read
from launcher.data.workers import Report, in_threads, quiet

# Edge of the gray image in pixels, and of its lowest frequencies.
_SIZE, _FREQUENCIES = 32, 8
# Images whose hashes differ in at most so many of 64 bits are alike; at least one of these ranges is equal then.
_MOST_BITS = 5
_PARTS = ((0, 11), (11, 22), (22, 33), (33, 44), (44, 54), (54, 64))
# Gray levels below which an image is too flat for its hash to mean anything.
_FLAT = 4.0
_FILES_A_TASK = 16
_TITLES = {"val": "validation", "test": "test"}


def near_duplicate_notes(splits: Sequence[Images], report: Report = quiet) -> list[str]:
    """Return a note on the images of each other split that look like a training image, without copies of equal bytes.

    splits: the training images first.
    """
    pieces = [split.pieces() for split in splits]
    hashes = [_hashes(one, report) for one in pieces]
    notes = []
    for split, own, theirs in zip(splits[1:], pieces[1:], hashes[1:], strict=True):
        pairs = {}
        for number, other in _pairs(theirs, hashes[0]):
            if number not in pairs and read(own[number]) != read(pieces[0][other]):
                pairs[number] = other
        if pairs:
            number, other = next(iter(pairs.items()))
            of_all = f"of {count_of(len(own), f'{_TITLES[split.split]} image')}"
            looks = "looks like a training image" if len(pairs) == 1 else "look like training images"
            notes.append(f"{len(pairs):,} {of_all} {looks}: {own[number]} ~ {pieces[0][other]}")
    return notes


def perceptual_hash(pixels: np.ndarray) -> int | None:
    """Return 64 bits that change little where an image uint8 [H, W, 3] is resized or compressed; None of a flat one."""
    gray = Image.fromarray(pixels).convert("L").resize((_SIZE, _SIZE), Image.Resampling.LANCZOS)
    levels = np.asarray(gray, np.float64)
    if levels.std() < _FLAT:
        return None
    waves = _waves()
    low = (waves @ levels @ waves.T).reshape(-1)
    return int.from_bytes(np.packbits(low > np.median(low)).tobytes(), "big")


@cache
def _waves() -> np.ndarray:
    """Return the lowest frequencies of the cosine transform (DCT-II), float64 [8, 32]."""
    places = (np.arange(_SIZE) + 0.5) * np.pi / _SIZE
    return np.cos(np.arange(_FREQUENCIES)[:, None] * places)


def _hashes(pieces: Sequence[Piece], report: Report) -> dict[int, int]:
    """Return the hashes of images by their numbers, without flat and unreadable ones."""

    def of(piece: Piece) -> int | None:
        with suppress(OSError, UnreadableImage):
            return perceptual_hash(np.asarray(decode(read(piece), upright=True).image))
        return None

    each = in_threads(of, pieces, _FILES_A_TASK, report, "comparing the looks of images")
    return {number: one for number, one in enumerate(each) if one is not None}


def _pairs(some: dict[int, int], others: dict[int, int]) -> Iterator[tuple[int, int]]:
    """Yield the numbers of alike images."""
    numbers, hashes = np.array([*others], np.int64), np.array([*others.values()], np.uint64)
    parts = [_part(hashes, *bits) for bits in _PARTS]
    orders = [np.argsort(part, kind="stable") for part in parts]
    ordered = [part[order] for part, order in zip(parts, orders, strict=True)]
    for number, value in some.items():
        own = np.array([value], np.uint64)
        near: set[int] = set()
        for bits, order, part in zip(_PARTS, orders, ordered, strict=True):
            first, beyond = (np.searchsorted(part, _part(own, *bits), side)[0] for side in ("left", "right"))
            near.update(order[first:beyond].tolist())
        candidates = np.array(sorted(near), np.int64)
        differ = np.unpackbits((hashes[candidates] ^ own)[:, None].view(np.uint8), axis=1).sum(1)
        yield from ((number, other) for other in numbers[candidates[differ <= _MOST_BITS]].tolist())


def _part(hashes: np.ndarray, first: int, beyond: int) -> np.ndarray:
    """Return some bits of hashes, uint64 [N]."""
    return np.asarray((hashes >> np.uint64(first)) & np.uint64((1 << beyond - first) - 1))
