"""FFCV files as a run reads them; imports no torch before it opens them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from launcher.config.schema import RunConfig
from launcher.data.classes import read_labels
from launcher.data.ffcv.beton import Beton, manifest_path, read_manifest
from launcher.data.ffcv.dataset import SPLITS, FFCVDataset
from launcher.data.identity import of_source, of_splits
from launcher.data.index import Images, Texts
from launcher.data.loaders.base import Found, Opening, Source
from launcher.data.sources.images import ImageFiles
from launcher.data.sources.layout import FFCV, is_remote
from launcher.data.sources.path_tables import TABLES
from launcher.data.sources.shards import format_of, formats
from launcher.data.workers import Report
from launcher.errors import Problem, UserError, first_few

if TYPE_CHECKING:
    from launcher.data.images import Reader

# Listing so many images takes half a second; an image that was overwritten changes no folder.
_ALWAYS_LISTED = 20_000


class FFCVFiles(Source):
    """Both FFCV files of a run."""

    def reads_from(self, config: RunConfig) -> str | None:
        with suppress(UserError):
            files = FFCVDataset.of(config)
            return config.dataset.path if files.are_missing else str(files.path("train").parent)
        return None

    def find(self, config: RunConfig, skipped: Collection[str] | None, report: Report) -> Found | None:
        files = FFCVDataset.of(config)
        # note: a new run writes them before it starts
        if files.are_missing:
            return ImageFiles().find(config, skipped, report)
        train, val = files.open("train"), files.open("val")
        where = train.path.parent
        if train.manifest and val.manifest and train.manifest.classes != val.manifest.classes:
            different = sorted({*train.manifest.classes} ^ {*val.manifest.classes})
            message = f"{train.path.name} and {val.path.name} have different classes: {first_few(different)}"
            raise UserError(Problem(message + "; remove both and run train prepare again", "dataloader.folder", where))
        if config.task.labelled != "class" and not train.manifest:
            message = (
                f"{train.path.name} has one class an image, but task={config.task.name} needs others; write it by "
            )
            raise UserError(Problem(f"{message}train prepare", "dataloader.folder", where))
        in_train, in_val = train.rows["f1"], val.rows["f1"]
        if train.manifest and val.manifest:
            names = train.manifest.classes
        else:
            # note: files of other programs contain no class names; their label numbers are the classes
            numbers = np.union1d(in_train, in_val)
            names = [str(number) for number in numbers]
            in_train, in_val = np.searchsorted(numbers, in_train), np.searchsorted(numbers, in_val)
        names, labels = read_labels(config, names)
        both = zip(SPLITS, (labels[in_train], labels[in_val]), strict=True)
        images = [Images(split, str(where), names, Texts(), own) for split, own in both]
        classes = None if train.manifest else max(train.classes, val.classes)
        return Found(images, where, "dataloader.folder", classes)

    def identity(self, config: RunConfig, images: Sequence[Images]) -> str:
        return identity_of_files(config)

    def open(self, opening: Opening) -> tuple[Reader, Reader]:
        from launcher.data.ffcv.reader import open_readers  # note: OpenCV

        return open_readers(opening)


def identity_of_files(config: RunConfig) -> str:
    """Return the identity of the images that the files were written from; raises UserError if one is missing."""
    return of_splits(*(_of_file(FFCVDataset.of(config).open(split)) for split in SPLITS))


def are_of_images(config: RunConfig) -> bool:
    """Return whether the files are of the images that are there now, turned as in the config; True if that is unknown.

    Lists many images only if a folder or archive of them has changed since; raises UserError if there are none.
    """
    paths = [path for _, path in FFCVDataset.of(config).written()]
    manifests = [manifest for path in paths if (manifest := read_manifest(path)) is not None]
    root = Path(str(config.dataset.path))
    if len(manifests) < len(paths) or is_remote(str(root)):
        return True
    if any(manifest.exif_orientation != config.dataset.exif_orientation for manifest in manifests):
        return False
    written = min(manifest_path(path).stat().st_mtime for path in paths)
    is_large = sum(manifest.samples for manifest in manifests) > _ALWAYS_LISTED
    if is_large and all(one.stat().st_ctime <= written for one in _folders_and_archives(root, 2)):
        return True
    skipped = {f"{one.split}/{name}" for one in manifests for name in one.skipped} if config.dataset.skip_bad else ()
    return of_source(config, lambda: ImageFiles().list(config, skipped)) == identity_of_files(config)


def _folders_and_archives(root: Path, depth: int) -> Iterator[Path]:
    yield root
    if depth and root.is_dir():
        for one in os.scandir(root):
            if one.name != FFCV and (one.is_dir() or format_of(one.name) in (*formats(), *TABLES)):
                yield from _folders_and_archives(Path(one), depth - 1)


def _of_file(file: Beton) -> str:
    """Return the fingerprint of the files that an FFCV file was written from, else that of its rows."""
    if file.manifest is not None:
        return file.manifest.source
    return hashlib.sha256(np.ascontiguousarray(file.rows).tobytes()).hexdigest()
