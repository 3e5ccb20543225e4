"""Writes the FFCV files of a data set from its pictures, and checks them; imports no torch."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from launcher.config.schema import Dataset, FFCVFile
from launcher.data.ffcv.encode import Encoded, Unreadable, encode_all
from launcher.data.ffcv.file import FFCVDataset, full_values, open_beton, small_values
from launcher.data.ffcv.manifest import Manifest, checksum, manifest_path, write_manifest
from launcher.data.ffcv.writer import BetonWriter
from launcher.data.following import in_workers
from launcher.data.identity import divided, fingerprint
from launcher.data.shapes import ensure_shapes, shapes_folder
from launcher.data.sources.find import open_sources
from launcher.data.sources.source import Report, Source
from launcher.errors import Problem, UserError
from launcher.probe import usable_cores

SPLITS = ("train", "val")
Encode = Callable[..., list[Encoded | Unreadable]]
_PICTURES_A_TASK = 16
_SECONDS_A_SAVE = 30.0
_SHOWN = 10


def prepare(wanted: FFCVDataset, *, skip_bad: bool, report: Report) -> Iterator[tuple[Path, Manifest]]:
    """Write the files that are not there yet; yields each file and its manifest.

    Raises:
        UserError: the pictures are not there, some cannot be read (without `skip_bad`), or the disk is full.
    """
    loader, dataset = wanted.loader, wanted.dataset
    for split, given in (("train", loader.train), ("val", loader.val)):
        if given is not None:
            message = "names a file that is there already; leave it out to write one, or give dataloader.folder"
            raise UserError(Problem(message, f"dataloader.{split}", given))
    small_path, small = wanted.small_path(), small_values(loader.files)
    files = [(split, wanted.path(split), full_values(loader.files)) for split in SPLITS]
    files += [("train", small_path, small)] if small_path and small else []
    if all(_is_written(path) for _, path, _ in files):
        sources = {}
    else:
        found = open_sources(dataset, wanted.seed, _where(dataset), report, skip_bad=skip_bad)
        sources = dict(zip(SPLITS, _named(dataset, *found), strict=True))
    workers = usable_cores() if loader.workers == "auto" else loader.workers
    for split, path, values in files:
        if _is_written(path):
            manifest = open_beton(path).manifest
            assert manifest is not None
        else:
            writing = _Writing(path, values, upright=dataset.exif_orientation, workers=workers, skip_bad=skip_bad)
            manifest = _write(sources[split], writing, report)
        yield path, manifest


def verify(wanted: FFCVDataset, report: Report) -> Iterator[tuple[Path, Manifest]]:
    """Compare the files with their manifests, to the last bit; yields those that are whole.

    Raises:
        UserError: a file or manifest is missing, or they differ.
    """
    splits = [wanted.open(split) for split in SPLITS]
    small = wanted.open_small(splits[0])
    for found in [*splits, *([small] if small else [])]:
        if found.manifest is None:
            raise UserError(f"{found.path} has no manifest ({manifest_path(found.path).name}) to compare it with")
        if _checksum(found.path, report) != found.manifest.sha256:
            raise UserError(f"{found.path} is damaged: its checksum is not its manifest's; remove it, write it again")
        yield found.path, found.manifest


def _named(dataset: Dataset, train: Source, val: Source) -> tuple[Source, Source]:
    """The same, known by another name than their own lists where that tells more."""
    name = None
    if dataset.kind == "shapes" and dataset.path is None:
        # note: their bytes depend on the JPEG library, which makes them no other data set
        name = shapes_folder(dataset).name
    elif dataset.val_split is not None:
        lists = (zip(source.names, source.sizes(), strict=True) for source in (train, val))
        name = divided(itertools.chain(*lists), dataset.val_split)
    return dataclasses.replace(train, known_as=name), dataclasses.replace(val, known_as=name)


def _is_written(path: Path) -> bool:
    return path.exists() and manifest_path(path).exists()


def _where(dataset: Dataset) -> str:
    if dataset.kind == "folder" and dataset.path is None:
        message = "is not given; point it at class folders (train/CLASS/*.jpg, val/CLASS/*.jpg), tar files or a bucket"
        raise UserError(Problem(message, "dataset.path", None))
    return str(ensure_shapes(dataset)) if dataset.kind == "shapes" else str(dataset.path)


@dataclass(frozen=True)
class _Writing:
    """Which file is written, and how."""

    path: Path
    values: FFCVFile
    upright: bool
    workers: int
    skip_bad: bool


def _write(source: Source, to: _Writing, report: Report) -> Manifest:
    try:
        to.path.parent.mkdir(parents=True, exist_ok=True)
        return _write_source(source, to, report)
    except OSError as error:
        message = f"{to.path} cannot be written ({error.strerror}); what is done is kept, the same command goes on"
        raise UserError(Problem(message, "dataloader.folder", to.path.parent)) from None


def _write_source(source: Source, to: _Writing, report: Report) -> Manifest:
    values, upright = to.values, to.upright
    encode = partial(encode_all, values=values, upright=upright)
    identity = _identity(source, values, upright)
    writer = BetonWriter(to.path, source.labels, max_side=values.max_side, identity=identity)
    try:
        bad = _add_all(writer, source, encode, to.workers, report)
        if len(bad) == len(source.names):
            raise UserError(f"{source.root} holds no picture that can be read: {_listed(bad)}")
        if bad and not to.skip_bad:
            raise UserError(
                f"{len(bad)} of {len(source.names):,} pictures in {source.root} cannot be read: {_listed(bad)}; repair "
                "them and run the same command again, or leave them out by --skip-bad (the others are done)"
            )
        samples = writer.finish()
        kept = ((name, size) for name, size in zip(source.names, source.sizes(), strict=True) if name not in bad)
        manifest = Manifest(
            split=source.split,
            samples=samples,
            classes=source.classes,
            values=dataclasses.asdict(values),
            exif_orientation=upright,
            converted=dict(sorted(writer.converted.items())),
            skipped={**source.skipped, **bad},
            bytes=writer.partial.stat().st_size,
            sha256=_checksum(writer.partial, report),
            source=source.known_as or fingerprint(kept),
        )
        # note: a manifest without its file counts as nothing, a file without its manifest could not be checked
        write_manifest(to.path, manifest)
        writer.publish()
        return manifest
    finally:
        writer.close()


def _add_all(writer: BetonWriter, source: Source, encode: Encode, workers: int, report: Report) -> dict[str, str]:
    """Encode and add all pictures that are missing; returns file and reason of those that cannot be read."""
    missing, total = writer.missing, len(source.names)
    done, bad, saved = total - len(missing), {}, time.monotonic()
    try:
        for number, picture in _encoded(source, missing, encode, workers):
            if isinstance(picture, Unreadable):
                bad[source.names[number]] = picture.reason
            else:
                writer.add(number, picture)
            done += 1
            report(source.split, done, total)
            if time.monotonic() - saved > _SECONDS_A_SAVE:
                writer.save()
                saved = time.monotonic()
        writer.flush()
    finally:
        writer.save()
    return bad


def _encoded(
    source: Source, numbers: np.ndarray, encode: Encode, workers: int
) -> Iterator[tuple[int, Encoded | Unreadable]]:
    """The pictures of those numbers in their order, encoded by worker processes."""
    parts = [numbers[first : first + _PICTURES_A_TASK].tolist() for first in range(0, len(numbers), _PICTURES_A_TASK)]
    tasks = ((source.files, [source.piece(number) for number in part], part) for part in parts)
    for part, pictures in zip(parts, in_workers(encode, tasks, workers), strict=True):
        yield from zip(part, pictures, strict=True)


def _identity(source: Source, values: FFCVFile, upright: bool) -> str:
    """Equal for equal lists of pictures and equal values."""
    facts = [source.root, source.names, source.labels.tolist(), dataclasses.asdict(values), upright]
    return hashlib.sha256(json.dumps(facts).encode(errors="surrogateescape")).hexdigest()


def _checksum(path: Path, report: Report) -> str:
    done, total = 0, path.stat().st_size

    def advance(count: int) -> None:
        nonlocal done
        done += count
        report(f"checksum of {path.name.removesuffix('.partial')}", done, total)

    return checksum(path, advance)


def _listed(bad: dict[str, str]) -> str:
    shown = ", ".join(f"{file} ({reason})" for file, reason in itertools.islice(bad.items(), _SHOWN))
    return shown + f" and {len(bad) - _SHOWN} more" * (len(bad) > _SHOWN)
