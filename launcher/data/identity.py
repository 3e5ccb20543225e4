"""Identify data sets by the names and sizes of their files, in any folder; imports no torch."""

import hashlib
import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from launcher.config.schema import RunConfig
from launcher.data.builtin import drawn_as
from launcher.data.class_names import composed
from launcher.data.index import Images, Texts
from launcher.data.listing import is_folder
from launcher.data.loaders.base import source_of
from launcher.errors import UserError

COUNTS = ("dataset.classes", "dataset.train_samples", "dataset.val_samples")


def identity(config: RunConfig, skipped: Collection[str] | None = None, images: Sequence[Images] = ()) -> str:
    """Return a hash of a data set, equal for equal images on any machine, in any folder, and for FFCV files of them.

    Covers only the images that a run reads, without those `skipped`; None searches for unreadable ones. images: those
    of training and validation first, if they are listed.

    Raises UserError if the data set is missing or cannot be read.
    """
    source = source_of(config)
    own = source.identity(config, images)
    return of_source(config, lambda: images[:2] or source.list(config, skipped)) if own is None else own


def of_source(config: RunConfig, images: Callable[[], Sequence[Images]]) -> str:
    """Return the identity of the training and validation images that a function lists, unless they are built in."""
    dataset = config.dataset
    if dataset.is_built_in and dataset.path is None:
        # note: the values determine built-in images
        return of_splits(drawn_as(dataset), drawn_as(dataset))
    both = images()
    if dataset.folds is not None:
        return of_splits(*[fingerprint_of_whole(both, f"folds {dataset.folds} {dataset.groups}")] * 2)
    if dataset.val_split is None:
        return of_splits(*(fingerprint(listed(one)) for one in both))
    return of_splits(*[fingerprint_of_whole(both, f"val_split {dataset.val_split!r}")] * 2)


def identity_if_present(
    config: RunConfig, skipped: Collection[str] | None = None, images: Sequence[Images] = ()
) -> str | None:
    """Return `identity`, or None if the data set is not on this machine or not set; does not draw the built-in one."""
    path = config.dataset.path
    if path is not None and config.dataset.is_built_in and not is_folder(Path(path)):
        return None
    try:
        return identity(config, skipped, images)
    except UserError:
        return None


def fingerprint(files: Iterable[tuple[str, int | None]]) -> str:
    """Return the SHA-256 of one split's list of files: CLASS/NAME and, if available, bytes."""
    digest = hashlib.sha256()
    for name, size in files:
        digest.update(f"{name}\0{size}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def listed(images: Images) -> list[tuple[str, int | None]]:
    """Return CLASS/NAME and bytes of each image, then of each mask; names in Unicode's composed form."""
    # note: macOS's may not be
    files = [(composed(name), size) for name, size in zip(images.names, images.sizes(), strict=True)]
    if images.masks is None:
        return files
    names = Texts(path.removeprefix(f"{images.root}/") for path in images.masks)
    return [*files, *listed(replace(images, names=names, paths=images.masks, masks=None))]


def fingerprint_of_whole(splits: Iterable[Images], how: str) -> str:
    """Return the fingerprint of both splits: that of all files, and `how` they are divided.

    It is independent of seed and fold, so runs with several of them have the same data set.
    """
    files = sorted(itertools.chain(*map(listed, splits)), key=lambda one: one[0])
    return f"{fingerprint(files)} {how}"


def of_splits(train: str, val: str) -> str:
    """Return the identity of two splits with these fingerprints."""
    return hashlib.sha256(f"{train}\n{val}\n".encode()).hexdigest()
