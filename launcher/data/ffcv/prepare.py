"""`train prepare`: write the FFCV files of a data set from its images, and check them; imports no torch."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from launcher import atomic
from launcher.config.schema import Dataset
from launcher.counts import count_of
from launcher.data.builtin import shapes_folder
from launcher.data.classes import check_classes
from launcher.data.decode import UnreadableImage
from launcher.data.ffcv.beton import ALLOCATION, ROW, ROWS_START, Beton, Manifest, checksum, manifest_path, open_beton
from launcher.data.ffcv.dataset import SPLITS, FFCVDataset
from launcher.data.ffcv.encoder import Encoder
from launcher.data.ffcv.unfinished import Form, UnfinishedFile
from launcher.data.ffcv.values import FFCVFile
from launcher.data.identity import divided, fingerprint, listed
from launcher.data.sources.find import find_skipped, images_path, splits
from launcher.data.sources.source import Files, Piece
from launcher.data.split import Split
from launcher.data.workers import Report, in_threads, in_two_steps
from launcher.disk import is_there, reason
from launcher.errors import Problem, UserError, first_few
from launcher.probe import usable_cores

_IMAGES_A_TASK = 16
_CHUNK = 1 << 24
_Item = tuple[int, Piece]


class Unwritable(UserError):
    """The folder or the disk of the files cannot be written."""


def prepare(data: FFCVDataset, report: Report, images: Sequence[Split] = ()) -> Iterator[tuple[Path, Manifest]]:
    """Write the missing files; yield each file and its manifest.

    images: those of training and validation if they are listed, labelled by one class.

    Raises UserError if the images are missing or some cannot be decoded (unless skipped), and Unwritable.
    """
    loader, dataset = data.loader, data.dataset
    for split in SPLITS:
        if (file := getattr(loader, split)) is not None:
            message = "points to an existing file; to write new files, remove the key or set dataloader.folder"
            raise UserError(Problem(message, f"dataloader.{split}", file))
    jobs, files = {}, data.written()
    if not all(is_written(path) for _, path, _ in files):
        # note: a validation split is drawn from the readable images
        bad = find_skipped(dataset, data.seed, report) if dataset.val_split is not None else {}
        train, val = images or splits(dataset, data.seed, data.labelled, bad, report, is_prepared=True)
        if data.labelled == "class":
            check_classes(train.classes, train.labels, val.labels, "dataset.path", dataset.path)
        skipped = {name.removeprefix(train.place): reason for name, reason in bad.items()}
        workers = usable_cores() if loader.workers == "auto" else loader.workers
        job = partial(_Job, dataset, workers, report, _known_as(dataset, train, val))
        jobs = {"train": partial(job, train, skipped), "val": partial(job, val, {})}
    for split, path, values in files:
        if is_written(path):
            manifest = open_beton(path).manifest
            assert manifest is not None
        else:
            manifest = jobs[split](path, values).run()
        yield path, manifest


def verify(data: FFCVDataset, report: Report) -> Iterator[tuple[Path, Manifest]]:
    """Compare the checksums of the files with their manifests; yield intact ones.

    Raises UserError if a file or manifest is missing, or they differ.
    """
    splits = [data.open(split) for split in SPLITS]
    small = data.open_small(splits[0])
    for file in [*splits, *([small] if small else [])]:
        if file.manifest is None:
            raise UserError(f"{file.path} has no manifest; remove it and run train prepare")
        of = _checksum if file.manifest.sha256_of == "images" else _checksum_of_all
        if of(file, report) != file.manifest.sha256:
            raise UserError(f"{file.path} is damaged (wrong checksum); remove it and run train prepare")
        yield file.path, file.manifest


def _known_as(dataset: Dataset, train: Split, val: Split) -> str | None:
    """Return what replaces each split's fingerprint, or None."""
    if dataset.is_built_in and dataset.path is None:
        # note: their bytes depend on the JPEG library, but the data set is the same
        return shapes_folder(dataset).name
    return None if dataset.val_split is None else divided((train, val), f"val_split {dataset.val_split!r}")


def is_written(path: Path) -> bool:
    """Return whether a file and its manifest are there."""
    return is_there(path) and is_there(manifest_path(path))


def identity_of(source: Split, values: FFCVFile, *, upright: bool) -> str:
    """Return the SHA-256 of what determines a file, equal for equal lists of images and equal values."""
    files = [os.fsdecode(file) for file in source.files]
    facts = [_root(source), files, source.labels.tolist(), dataclasses.asdict(values), upright]
    return hashlib.sha256(json.dumps(facts).encode(errors="surrogateescape")).hexdigest()


def _root(source: Split) -> str:
    """Return the path of images in messages."""
    return source.root if source.stored is not None else str(Path(source.root).resolve())


@dataclass(frozen=True)
class _Job:
    """One file to write: its images, those that are skipped already with reasons, and its settings.

    `known_as` replaces the fingerprint of the images.
    """

    dataset: Dataset
    workers: int
    report: Report
    known_as: str | None
    source: Split
    skipped: dict[str, str]
    path: Path
    values: FFCVFile

    def run(self) -> Manifest:
        """Write the file and its manifest, or continue what was stored of it."""
        source, values = self.source, self.values
        identity = identity_of(source, values, upright=self.dataset.exif_orientation)
        try:
            unfinished = UnfinishedFile(self.path, len(source.labels), values.max_side, identity)
            with closing(unfinished), unfinished.alone():
                return self._write(unfinished)
        except (FileExistsError, NotADirectoryError):
            message = "is a file, or below one; choose a folder"
            raise Unwritable(Problem(message, "dataloader.folder", self.path.parent)) from None
        except OSError as error:
            message = f"{self.path} cannot be written ({reason(error)}); finished images are kept: "
            message += "run the same command to resume"
            raise Unwritable(Problem(message, "dataloader.folder", self.path.parent)) from None

    def _write(self, unfinished: UnfinishedFile) -> Manifest:
        source, bad = self.source, self._add_all(unfinished)
        shown = first_few([f"{file} ({reason})" for file, reason in bad.items()], 10)
        if len(bad) == len(source.files):
            raise UserError(f"no image in {_root(source)} can be decoded: {shown}; set another dataset.path")
        if bad and not self.dataset.skip_bad:
            raise UserError(
                f"{len(bad)} of {count_of(len(source.files), 'image')} in {_root(source)} cannot be decoded: {shown}; "
                "repair them and run the same command again, or skip them by dataset.skip_bad=true (others are done)"
            )
        stored = ((name, size) for name, size in listed(source) if name not in bad)
        known_as = self.known_as or fingerprint(stored)
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
                source=known_as,
            )
            # note: first the manifest: it is ignored without its file, but a file cannot be checked without it
            atomic.write_text(manifest_path(self.path), json.dumps(dataclasses.asdict(manifest), indent=1) + "\n")
        return manifest

    def _add_all(self, unfinished: UnfinishedFile) -> dict[str, str]:
        """Encode and store all missing images; return those that cannot be decoded, with reasons."""
        missing, total = unfinished.missing(self.report), len(self.source.files)
        if not missing:
            return {}
        files, upright = Files(images_path(self.dataset)), self.dataset.exif_orientation
        encoder = Encoder(unfinished, files, self.values, upright=upright)
        bad: dict[str, str] = {}

        def place(items: list[_Item], images: list[Form | UnreadableImage]) -> list[int]:
            for (number, _), image in zip(items, images, strict=True):
                if isinstance(image, UnreadableImage):
                    bad[self.source.files[number]] = str(image)
                else:
                    unfinished.place(number, image)
            return [number for number, _ in items]

        items = ((number, self.source.piece(number)) for number in missing)
        with closing(in_two_steps(encoder.encode, place, encoder.store, items, _IMAGES_A_TASK, self.workers)) as stored:
            for done, _ in enumerate(stored, total - len(missing) + 1):
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
