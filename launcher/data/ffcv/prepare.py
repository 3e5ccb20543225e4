"""`train prepare`: write the FFCV files of a data set from its images, and check them; imports no torch."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from launcher.compute.probe import usable_cores
from launcher.config.schema import Dataset
from launcher.counts import count_of
from launcher.data.builtin import shapes_folder
from launcher.data.classes import check_classes
from launcher.data.ffcv.beton import ALLOCATION, ROW, ROWS_START, Beton, Manifest, checksum, manifest_path, open_beton
from launcher.data.ffcv.dataset import SPLITS, FFCVDataset, is_written
from launcher.data.ffcv.encoder import store_all
from launcher.data.ffcv.unfinished import UnfinishedFile
from launcher.data.identity import fingerprint, fingerprint_of_whole, listed
from launcher.data.index import Images
from launcher.data.loaders.ffcv import FFCVFile
from launcher.data.sources.find import find_splits, images_path
from launcher.data.sources.source import Files
from launcher.data.workers import Report, in_threads, in_workers
from launcher.errors import Problem, UserError, first_few
from launcher.files import atomic
from launcher.files.disk import reason

_IMAGES_A_TASK = 16
_CHUNK = 1 << 24


def prepare(data: FFCVDataset, report: Report, images: Sequence[Images] = ()) -> Iterator[tuple[Path, Manifest]]:
    """Write the missing files; yield each file and its manifest.

    images: those of training and validation if they are listed, labelled by one class.

    Raises UserError if the images are missing, some cannot be decoded (unless skipped), one of the files has others, or
    none can be written.
    """
    loader, dataset = data.loader, data.dataset
    for split in SPLITS:
        if (file := getattr(loader, split)) is not None:
            message = "points to an existing file; to write new files, remove the key or set dataloader.folder"
            raise UserError(Problem(message, f"dataloader.{split}", file))
    jobs: dict[str, _Job] = {}
    files = data.written()
    if not all(is_written(path) for _, path in files):
        # note: a validation split is drawn from the readable images
        skipped = () if dataset.val_split is None else None
        (train, val), bad = (
            (images, dict[str, str]())
            if images
            else find_splits(dataset, data.seed, data.labelled, skipped, report, is_prepared=True)
        )
        if data.labelled == "class":
            check_classes(train.classes, train.labels, val.labels, "dataset.path", dataset.path)
        without = {name.removeprefix(train.place): reason for name, reason in bad.items()}
        workers = usable_cores() if loader.workers == "auto" else loader.workers
        job = partial(_Job, dataset, loader.files, workers, report, known_as(dataset, train, val))
        jobs = {"train": job(train, without), "val": job(val, {})}
    for split, path in files:
        if not is_written(path):
            yield path, jobs[split].write(path)
            continue
        file = open_beton(path)
        assert file.manifest is not None
        if jobs:
            check_source(file, jobs[split].source, dataset, jobs[split].known_as)
        yield path, file.manifest


def verify(data: FFCVDataset, report: Report) -> Iterator[tuple[Path, Manifest]]:
    """Compare the checksums of the files with their manifests; yield intact ones.

    Raises UserError if a file or manifest is missing, or they differ.
    """
    splits = [data.open(split) for split in SPLITS]
    for file in splits:
        if file.manifest is None:
            raise UserError(f"{file.path} has no manifest; remove it and run train prepare")
        of = _checksum if file.manifest.sha256_of == "images" else _checksum_of_all
        if of(file, report) != file.manifest.sha256:
            raise UserError(f"{file.path} is damaged (wrong checksum); remove it and run train prepare")
        yield file.path, file.manifest


def known_as(dataset: Dataset, train: Images, val: Images) -> str | None:
    """Return what replaces each split's fingerprint, or None."""
    if dataset.is_built_in and dataset.path is None:
        # note: their bytes depend on the JPEG library, but the data set is the same
        return shapes_folder(dataset).name
    return None if dataset.val_split is None else fingerprint_of_whole((train, val), f"val_split {dataset.val_split!r}")


def check_source(file: Beton, images: Images, dataset: Dataset, known_as: str | None) -> None:
    """Raise UserError if a written file is of other images of a split, or turned otherwise."""
    manifest = file.manifest
    assert manifest is not None
    source = known_as or _fingerprint_without(images, listed(images), manifest.skipped)
    if (source, dataset.exif_orientation) != (manifest.source, manifest.exif_orientation):
        raise UserError(other_images(file.path, dataset))


def other_images(path: Path, dataset: Dataset) -> Problem:
    """Return the error of a file of other images, or of a folder with such files."""
    message = f"{path} has other images or rotations than {dataset.path}; remove it and run the same command again"
    return Problem(f"{message}, or set another dataloader.folder", "dataset.path", dataset.path)


def _fingerprint_without(images: Images, entries: Sequence[tuple[str, int | None]], bad: Collection[str]) -> str:
    return fingerprint(entry for entry, file in zip(entries, images.names, strict=True) if file not in bad)


def key_of(source: Images, values: FFCVFile, *, upright: bool) -> str:
    """Return the SHA-256 of what determines a file, equal for equal lists of images and equal values."""
    files = [*source.names]
    facts = [_root(source), files, source.labels.tolist(), dataclasses.asdict(values), upright]
    return hashlib.sha256(json.dumps(facts).encode(errors="surrogateescape")).hexdigest()


def _root(source: Images) -> str:
    """Return the path of images in messages."""
    return str(Path(source.root).resolve()) if source.are_class_folders else source.root


@dataclass(frozen=True)
class _Job:
    """The images of files to write, and those that are skipped already with reasons.

    `known_as` replaces the fingerprint of the images.
    """

    dataset: Dataset
    values: FFCVFile
    workers: int
    report: Report
    known_as: str | None
    source: Images
    skipped: dict[str, str]

    def write(self, path: Path) -> Manifest:
        """Write a file and its manifest, or continue what was stored of it."""
        source = self.source
        identity = key_of(source, self.values, upright=self.dataset.exif_orientation)
        try:
            unfinished = UnfinishedFile(path, len(source.labels), self.values.max_side, identity)
            with closing(unfinished), unfinished.alone():
                return self._write(unfinished, path)
        except (FileExistsError, NotADirectoryError):
            message = "is a file, or below one; choose a folder"
            raise UserError(Problem(message, "dataloader.folder", path.parent)) from None
        except OSError as error:
            message = f"{path} cannot be written ({reason(error)}); finished images are kept: "
            message += "run the same command to resume"
            raise UserError(Problem(message, "dataloader.folder", path.parent)) from None

    def _write(self, unfinished: UnfinishedFile, path: Path) -> Manifest:
        source, entries = self.source, listed(self.source)
        bad = self._add_all(unfinished, [size for _, size in entries])
        shown = first_few([f"{file} ({reason})" for file, reason in bad.items()], 10)
        if len(bad) == len(source):
            raise UserError(f"no image in {_root(source)} can be decoded: {shown}; set another dataset.path")
        if bad and not self.dataset.skip_bad:
            raise UserError(
                f"{len(bad)} of {count_of(len(source), 'image')} in {_root(source)} cannot be decoded: {shown}; "
                "repair them and run the same command again, or skip them by dataset.skip_bad=true (others are done)"
            )
        with unfinished.finished(source.labels) as finished:
            manifest = Manifest(
                split=source.split,
                samples=finished.samples,
                classes=source.classes,
                values=dataclasses.asdict(self.values),
                exif_orientation=self.dataset.exif_orientation,
                converted=finished.converted,
                skipped={**self.skipped, **bad},
                bytes=finished.bytes,
                sha256=finished.sha256,
                sha256_of="images",
                source=self.known_as or _fingerprint_without(source, entries, bad),
            )
            # note: first the manifest: it is ignored without its file, but a file cannot be checked without it
            atomic.write_text(manifest_path(path), json.dumps(dataclasses.asdict(manifest), indent=1) + "\n")
        return manifest

    def _add_all(self, unfinished: UnfinishedFile, sizes: Sequence[int | None]) -> dict[str, str]:
        """Encode and store missing images, given the bytes of all; return those that cannot be decoded, and why."""
        missing, total = unfinished.missing(sizes, self.report), len(sizes)
        if not missing:
            return {}
        files, upright = Files(images_path(self.dataset)), self.dataset.exif_orientation
        work = partial(store_all, unfinished=unfinished, files=files, values=self.values, upright=upright)
        items = ((number, self.source.piece(number), sizes[number]) for number in missing)
        bad: dict[str, str] = {}
        with closing(in_workers(work, items, _IMAGES_A_TASK, self.workers)) as stored:
            for done, ((number, _, _), why) in enumerate(stored, total - len(missing) + 1):
                if why is not None:
                    bad[self.source.names[number]] = why
                self.report(self.source.split, done, total)
        return bad


def _checksum(file: Beton, report: Report) -> str:
    """Return the checksum of a file, whose images are read in threads."""
    with file.path.open("rb") as opened:
        number = opened.fileno()

        def digest(piece: tuple[int, int, int]) -> bytes:
            _, place, size = piece
            return hashlib.sha256(os.pread(number, size, place)).digest()

        head = os.pread(number, ROWS_START + file.samples * ROW.itemsize, 0)
        table = os.pread(number, file.bytes - file.table, file.table)
        pieces = np.frombuffer(table, ALLOCATION).tolist()
        digests = in_threads(digest, pieces, _IMAGES_A_TASK, report, f"checksum of {file.path.name}")
        return checksum(head, table, b"".join(digests))


def _checksum_of_all(file: Beton, report: Report) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    digest, done = hashlib.sha256(), 0
    with file.path.open("rb") as opened:
        while chunk := opened.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            report(f"checksum of {file.path.name}", done, file.bytes)
    return digest.hexdigest()
