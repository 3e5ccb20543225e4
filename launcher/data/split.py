"""The files of the images of a split: their bytes, those that are missing, and without some; imports no torch."""

import os
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from launcher.data.dropped import UNREADABLE, drops_of
from launcher.data.index import Images
from launcher.data.listing import unreadable_path
from launcher.data.sources.layout import problem
from launcher.data.workers import in_threads

_FILES_A_TASK = 1000


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
