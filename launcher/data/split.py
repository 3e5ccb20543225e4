"""Divide the images of splits, relabel them, and remove some; imports no torch."""

import itertools
import os
import zlib
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from launcher.compute import randomness
from launcher.data.class_names import in_order
from launcher.data.classes import places_in
from launcher.data.dropped import UNREADABLE, drops_of
from launcher.data.index import Images
from launcher.data.listing import unreadable_path
from launcher.data.sources.layout import problem
from launcher.data.workers import in_threads

_FILES_A_TASK = 1000


def same_classes(train: Images, val: Images) -> tuple[Images, Images]:
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


def sizes(images: Images) -> Sequence[int | None]:
    """Return the bytes of each image, None if unknown.

    Raises UserError if an image no longer exists.
    """
    if images.places is not None:
        return [None if size < 0 else size for size in images.places[:, 2].tolist()]
    try:
        return [*in_threads(images.size, range(len(images)), _FILES_A_TASK)]
    except OSError as error:
        raise problem(images.root.removesuffix(f"/{images.place.rstrip('/')}"), unreadable_path(error)) from None


def missing_files(images: Images) -> list[str]:
    """Return the files of images that do not exist."""

    def missing(number: int) -> str:
        file = images.piece(number).file
        return "" if os.path.exists(file) else file  # noqa: PTH110 - of a million files

    return [*filter(None, in_threads(missing, range(len(images)), _FILES_A_TASK))]


def without(images: Images, skipped: Collection[str]) -> Images:
    """Remove images, given relative to the data set's folder; classes stay."""
    if not skipped:
        return images
    kept = np.array([f"{images.place}{file}" not in skipped for file in images.names])
    bad = [images.names[number] for number in np.flatnonzero(~kept).tolist()]
    return replace(images.part(kept), dropped={**images.dropped, **drops_of({UNREADABLE: bad})})


def divided(whole: Images, fraction: float, seed: int, *, by_class: bool = True) -> tuple[Images, Images]:
    """Split off a fraction of each class, or of all images, for validation: at least one image, but never all.

    The choice depends on the seed and the file names, so adding or removing an image changes little.
    """
    names = np.array([zlib.crc32(os.fsencode(file)) for file in whole.names], np.int64)
    chances = randomness.uniforms(seed, "val_split", 0, names, 1)[:, 0]
    in_val = np.zeros(len(names), bool)
    bounds = np.searchsorted(whole.labels, np.arange(len(whole.classes) + 1)).tolist() if by_class else [0, len(names)]
    for first, beyond in itertools.pairwise(bounds):
        count = min(max(1, round(fraction * (beyond - first))), beyond - first - 1)
        in_val[first + np.argsort(chances[first:beyond], kind="stable")[: max(0, count)]] = True
    return sides(whole, in_val)


def sides(whole: Images, in_val: np.ndarray) -> tuple[Images, Images]:
    """Return the images for training, and those for validation, where `in_val`, bool [N], is true."""
    whole = replace(whole, groups=None)
    train, val = whole.part(~in_val), replace(whole.part(in_val), split="val", dropped={})
    # note: what is dropped counts for the training images
    return replace(train, seen=whole.seen - len(val)), replace(val, seen=len(val))
