"""The images of a split, wherever they are; imports no torch."""

import itertools
import os
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from launcher import randomness
from launcher.config.class_names import in_order
from launcher.data.classes import places_in
from launcher.data.dropped import UNREADABLE, Dropped, drops_of
from launcher.data.listing import unreadable_path
from launcher.data.sources.layout import problem
from launcher.data.sources.pieces import Packed, Piece, Remote, Stored
from launcher.data.workers import in_threads

_FILES_A_TASK = 1000


@dataclass(frozen=True)
class Split:
    """The images of one split in the order of their names: `files` relative to `root`, `labels` int64 [N].

    `stored` is where images are that are not in class folders: `root` is the path in messages then, and `files` are
    names. `place` is the prefix of `root` within the data set's folder, ending in a slash, or empty. Of `seen` files or
    rows, those that are `dropped` have a reason. `groups` are values of the column `dataset.groups` of a table.
    """

    root: str
    split: str
    classes: list[str]
    files: Sequence[str]
    labels: np.ndarray
    stored: Stored | None = None
    place: str = ""
    seen: int = 0
    dropped: Mapping[str, Dropped] = field(default_factory=dict)
    groups: Sequence[str] | None = None

    def piece(self, number: int) -> Piece:
        """Return where an image is."""
        name = os.fsdecode(self.files[number])
        return Piece(name, f"{self.root}/{name}") if self.stored is None else self.stored.piece(name, number)

    def size(self, number: int) -> int | None:
        """Return the bytes of an image, None if unknown; raises OSError if it no longer exists."""
        piece = self.piece(number)
        if isinstance(self.stored, Packed | Remote):
            return piece.size
        return os.stat(piece.file).st_size  # noqa: PTH116 - of a million files

    def facts(self) -> dict[str, object]:
        """Return how many files or rows were seen, taken and dropped, and why."""
        dropped = [{"reason": why, "count": one.rows, "example": one.example} for why, one in self.dropped.items()]
        return {"seen": self.seen, "taken": len(self.files), "dropped": dropped}


def same_classes(train: Split, val: Split) -> tuple[Split, Split]:
    """Relabel both splits by their common classes, so that a class missing in one does not shift its labels.

    The order is that of the split which has all classes, else that of their names.
    """
    if train.classes == val.classes:
        return train, val
    whole = (one.classes for one in (train, val) if {*one.classes}.issuperset(train.classes + val.classes))
    classes = next(whole, None) or in_order([*train.classes, *val.classes])
    train, val = (
        replace(one, classes=classes, labels=places_in(one.classes, classes)[one.labels]) for one in (train, val)
    )
    return train, val


def sizes(folder: Split) -> Sequence[int | None]:
    """Return the bytes of each image, None if unknown.

    Raises UserError if an image no longer exists.
    """
    if isinstance(folder.stored, Packed):
        return folder.stored.places[:, 2].tolist()  # type: ignore[no-any-return]
    if isinstance(folder.stored, Remote):
        return folder.stored.sizes.tolist()  # type: ignore[no-any-return]

    try:
        return [*in_threads(folder.size, range(len(folder.files)), _FILES_A_TASK)]
    except OSError as error:
        raise problem(folder.root.removesuffix(f"/{folder.place.rstrip('/')}"), unreadable_path(error)) from None


def missing_files(folder: Split) -> list[str]:
    """Return the files of images that do not exist."""

    def missing(number: int) -> str:
        file = folder.piece(number).file
        return "" if os.path.exists(file) else file  # noqa: PTH110 - of a million files

    return [*filter(None, in_threads(missing, range(len(folder.files)), _FILES_A_TASK))]


def without(folder: Split, skipped: Collection[str]) -> Split:
    """Remove images, given relative to the data set's folder; classes stay."""
    if not skipped:
        return folder
    kept = np.array([f"{folder.place}{file}" not in skipped for file in folder.files])
    bad = [folder.files[number] for number in np.flatnonzero(~kept).tolist()]
    return replace(part(folder, kept), dropped={**folder.dropped, **drops_of({UNREADABLE: bad})})


def divided(whole: Split, fraction: float, seed: int, *, by_class: bool = True) -> tuple[Split, Split]:
    """Split off a fraction of each class, or of all images, for validation: at least one image, but never all.

    The choice depends on the seed and the file names, so adding or removing an image changes little.
    """
    names = np.array([zlib.crc32(os.fsencode(file)) for file in whole.files], np.int64)
    chances = randomness.uniforms(seed, "val_split", 0, names, 1)[:, 0]
    in_val = np.zeros(len(names), bool)
    bounds = np.searchsorted(whole.labels, np.arange(len(whole.classes) + 1)).tolist() if by_class else [0, len(names)]
    for first, beyond in itertools.pairwise(bounds):
        count = min(max(1, round(fraction * (beyond - first))), beyond - first - 1)
        in_val[first + np.argsort(chances[first:beyond], kind="stable")[: max(0, count)]] = True
    return sides(whole, in_val)


def sides(whole: Split, in_val: np.ndarray) -> tuple[Split, Split]:
    """Return the images for training, and those for validation, where `in_val`, bool [N], is true."""
    whole = replace(whole, groups=None)
    train, val = part(whole, ~in_val), replace(part(whole, in_val), split="val", dropped={})
    # note: what is dropped counts for the training images
    return replace(train, seen=whole.seen - len(val.files)), replace(val, seen=len(val.files))


def part(whole: Split, chosen: np.ndarray) -> Split:
    """Select images: those where `chosen`, bool [N], is true, or those of these numbers, in order; classes stay."""
    numbers = np.flatnonzero(chosen) if chosen.dtype == bool else chosen
    files = [whole.files[number] for number in numbers.tolist()]
    stored = whole.stored.part(numbers) if whole.stored is not None else None
    groups = None if whole.groups is None else [whole.groups[number] for number in numbers.tolist()]
    return replace(whole, files=files, labels=whole.labels[numbers], stored=stored, groups=groups)
