"""What distinguishes one data set from another: the names and sizes of its files, in any folder; imports no torch."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Iterable
from pathlib import Path

import numpy as np

from launcher.config.schema import FFCVLoader, RunConfig, SyntheticLoader
from launcher.data.ffcv.beton import Beton
from launcher.data.ffcv.dataset import FFCVDataset
from launcher.data.folder import is_folder, sizes, splits
from launcher.data.shapes import drawn_as, ensure_folder
from launcher.data.sources.source import quiet
from launcher.data.unreadable import find_skipped
from launcher.errors import UserError

COUNTS = ("dataset.classes", "dataset.train_samples", "dataset.val_samples")


def identity(config: RunConfig, skipped: Collection[str] | None = None) -> str:
    """Return a hash that is equal for equal images: on any machine, in any folder, and in FFCV files of them.

    Only the images that a run reads count: without those `skipped`, which are searched for if None is given.

    Raises:
        UserError: the data set is not there, or cannot be read.
    """
    if isinstance(config.dataloader, FFCVLoader):
        return _of_splits(*(_of_file(FFCVDataset.of(config).open(split)) for split in ("train", "val")))
    if (known := _built_in(config)) is not None:
        return known
    dataset = config.dataset
    path = ensure_folder(dataset)
    if skipped is None:
        skipped = find_skipped(dataset, config.seed, path, quiet)
    lists = [zip(part.files, sizes(part), strict=True) for part in splits(path, dataset, config.seed, skipped)]
    if dataset.val_split is None:
        return _of_splits(*map(fingerprint, lists))
    known = divided(itertools.chain(*lists), dataset.val_split)
    return _of_splits(known, known)


def identity_if_there(config: RunConfig, skipped: Collection[str] | None = None) -> str | None:
    """Return the same; None if the data set is not on this machine, or not given. The built-in one is not drawn."""
    path = config.dataset.path
    if path is not None and config.dataset.kind == "shapes" and not is_folder(Path(path)):
        return None
    try:
        return identity(config, skipped)
    except UserError:
        return None


def _built_in(config: RunConfig) -> str | None:
    """Return the identity of generated images from the values that determine them; None for other data sets."""
    dataset = config.dataset
    if isinstance(config.dataloader, SyntheticLoader):
        counts = (dataset.classes, dataset.train_samples, dataset.val_samples)
        return "-".join(["synthetic", *map(str, counts), str(config.dataloader.batches)])
    if dataset.kind != "shapes" or dataset.path is not None:
        return None
    return _of_splits(drawn_as(dataset), drawn_as(dataset))


def fingerprint(files: Iterable[tuple[str, int | None]]) -> str:
    """Return the SHA-256 of one split's list of files: CLASS/NAME, and bytes where they are known."""
    digest = hashlib.sha256()
    for name, size in files:
        digest.update(f"{name}\0{size}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def divided(files: Iterable[tuple[str, int | None]], share: float) -> str:
    """Return what stands for both splits' lists where a share is drawn for validation: that of all files.

    The seed draws the share, and runs of several seeds are on one data set.
    """
    return f"{fingerprint(sorted(files, key=lambda one: one[0]))} val_split {share!r}"


def _of_splits(train: str, val: str) -> str:
    return hashlib.sha256(f"{train}\n{val}\n".encode()).hexdigest()


def _of_file(file: Beton) -> str:
    """Return the fingerprint of the files that an FFCV file was written from, else that of its rows."""
    if file.manifest is not None:
        return file.manifest.source
    return hashlib.sha256(np.ascontiguousarray(file.rows).tobytes()).hexdigest()
