"""Duplicate images: in two splits, twice in one, or in two classes; imports no torch."""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

from launcher.counts import count_of
from launcher.data.decode import UnreadableImage
from launcher.data.index import Images, Piece
from launcher.data.sources.reading import read
from launcher.data.workers import Report, in_threads, quiet

# Limits of a quick search: images, pairs of equal names where there are more images, and bytes.
_MOST_IMAGES, _MOST_NAMES, _MOST_BYTES = 20_000, 1_000, 1 << 28
# Bytes at the end of a file, which are compared first: headers of one camera are equal.
_END = 4096
_FILES_A_TASK = 64
_TITLES = {"train": "training", "val": "validation", "test": "test"}

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Image(NamedTuple):
    split: str
    label: bytes
    piece: Piece


class _File(NamedTuple):
    """The identity of a file, equal for links to it, or that of an image in an archive."""

    size: int
    place: tuple[int, int] | tuple[str, int]


def duplicate_notes(splits: Sequence[Images], report: Report = quiet, *, quick: bool = False) -> list[str]:
    """Return notes on images of equal bytes: training images in other splits, copies in a split, and other labels.

    splits: the training images first; all have the same classes.
    quick: read few bytes and, of many images, compare only those with equal names; the counts are lower bounds then.
    """
    if quick and any(split.are_copied or split.are_in_bucket for split in splits):
        return []
    images = [
        _Image(split.split, split.labels[number].tobytes(), split.piece(number))
        for split, number in _listed(splits, quick)
    ]
    files = _each(_file, images, report, "looking for duplicates")
    pieces = {file: image.piece for image, file in files.items() if file.size}
    alike = _alike(pieces, lambda file: file.size)
    ends = _each(lambda file: _digest(pieces[file], file.size - _END), _flat(alike), report, "comparing sizes")
    alike = _alike(ends, lambda file: (file.size, ends[file]))
    candidates = [*_within(alike, _MOST_BYTES)] if quick else alike
    digests = _each(lambda file: _digest(pieces[file]), _flat(candidates), report, "comparing contents")
    same = _alike((image for image in images if image in files), lambda image: digests.get(files[image], files[image]))
    compared = len(images) - sum(map(len, alike)) + sum(map(len, candidates))
    total = sum(len(split) for split in splits)
    notes = _notes(same, splits, "at least " if compared < total else "")
    partly = f"looked for duplicates among {compared:,} of {count_of(total, 'image')}; train doctor compares all"
    return [*notes, partly] if compared < total else notes


def _listed(splits: Sequence[Images], quick: bool) -> Iterator[tuple[Images, int]]:
    names: set[str] | None = None
    if quick and sum(len(split) for split in splits) > _MOST_IMAGES:
        names = set()
        for other in splits[1:]:
            common = sorted({*splits[0].names}.intersection(other.names))
            names.update(common[:: -(-len(common) // _MOST_NAMES) or 1])
    for split in splits:
        for number, file in enumerate(split.names):
            if names is None or file in names:
                yield split, number


def _within(groups: Iterable[list[_File]], most: int) -> Iterator[list[_File]]:
    """Return the first groups, at most so many bytes."""
    for group in groups:
        most -= len(group) * group[0].size
        if most < 0:
            return
        yield group


def _alike(items: Iterable[Item], key: Callable[[Item], object]) -> list[list[Item]]:
    """Return groups of items with equal keys."""
    groups: dict[object, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return [group for group in groups.values() if len(group) > 1]


def _flat(groups: Iterable[list[Item]]) -> list[Item]:
    return [item for group in groups for item in group]


def _each(work: Callable[[Item], Result], items: Sequence[Item], report: Report, what: str) -> dict[Item, Result]:
    """Return the results of items, without unreadable files."""

    def attempt(item: Item) -> tuple[Item, Result] | None:
        with suppress(OSError, UnreadableImage):
            return item, work(item)
        return None

    return dict(filter(None, in_threads(attempt, items, _FILES_A_TASK, report, what)))


def _file(image: _Image) -> _File:
    piece = image.piece
    if piece.size is not None:
        return _File(piece.size, (piece.file, piece.start))
    facts = os.stat(piece.file)  # noqa: PTH116 - of a million files
    return _File(facts.st_size, (facts.st_dev, facts.st_ino))


def _digest(piece: Piece, start: int = 0) -> bytes:
    """Hash an image from a byte on."""
    if piece.size is not None:
        return hashlib.sha256(read(piece)[max(0, start) :]).digest()
    with open(piece.file, "rb", buffering=0) as file:  # noqa: PTH123 - of a million files
        file.seek(max(0, start))
        return hashlib.file_digest(file, "sha256").digest()


def _notes(groups: Sequence[Sequence[_Image]], splits: Sequence[Images], at_least: str) -> list[str]:
    """Return a note per kind; the training images come first in each group."""
    notes = []
    for split in splits[1:]:
        shared = [(image, group[0]) for group in groups for image in group if image.split == split.split]
        shared = [(image, other) for image, other in shared if other.split == "train"]
        of_all = f"of {count_of(len(split), f'{_TITLES[split.split]} image')}"
        are = "is a training image too" if len(shared) == 1 else "are training images too"
        notes += _line(shared, at_least, f"{len(shared):,} {of_all} {are}, so accuracy is too high")
    for split in splits:
        ours = ([image for image in group if image.split == split.split] for group in groups)
        copies = [(image, same[0]) for same in ours for image in same[1:]]
        copies, again = _divided(copies)
        are = "is a copy of another" if len(copies) == 1 else "are copies of others"
        notes += _line(copies, at_least, f"{count_of(len(copies), f'{_TITLES[split.split]} image')} {are}")
        rows = count_of(len(again), f"{_TITLES[split.split]} row")
        notes += _line(again, at_least, f"{rows} with the image of another row")
    mixed, again = _divided([(one, group[0]) for group in groups for one in group if one.label != group[0].label])
    notes += _line(mixed, at_least, f"{count_of(len(mixed), 'image')} with a copy in another class")
    what = f"{count_of(len(again), 'row')} with the image of a row of another label, so they contradict each other"
    return notes + _line(again, at_least, f"{what}; write one row an image, for task=multilabel with all its labels")


def _divided(pairs: Sequence[tuple[_Image, _Image]]) -> tuple[list[tuple[_Image, _Image]], list[tuple[_Image, _Image]]]:
    """Return the pairs of two files, and those of one file, which rows of a table have twice."""
    copies: list[tuple[_Image, _Image]] = []
    again: list[tuple[_Image, _Image]] = []
    for one, other in pairs:
        (again if _place(one) == _place(other) else copies).append((one, other))
    return copies, again


def _line(pairs: Sequence[tuple[_Image, _Image]], at_least: str, what: str) -> list[str]:
    """Return a note on pairs with the first; none without pairs."""
    same = [(str(one.piece), str(other.piece)) for one, other in pairs[:1]]
    return [f"{at_least}{what}: {one}{f' = {other}' * (other != one)}" for one, other in same]


def _place(image: _Image) -> tuple[str, int]:
    return image.piece.file, image.piece.start
