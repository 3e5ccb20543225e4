"""Which kind of source a data set's path is; imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from launcher.config.schema import Dataset
from launcher.data.classes import check_classes, same_classes
from launcher.data.decode import UnreadableImage
from launcher.data.folder import TAR, Folder, is_folder, is_remote, only_prepared, problem, scan, sizes, splits
from launcher.data.sources.remote import RemoteFiles, remote_folders
from launcher.data.sources.source import Piece, Report, Source, Storage, below
from launcher.data.sources.tar import ARCHIVES, class_folders, imagenet_source
from launcher.data.unreadable import unreadable
from launcher.errors import Problem, UserError

# note: no picture that is decoded has as many; a hostile file must not fill the memory
MOST_BYTES = 1 << 30


@dataclass(frozen=True)
class LocalFiles:
    """A `Storage` of files that have a path."""

    def holds(self, file: str) -> bool:
        return Path(file).is_file()

    def open(self, file: str, ahead: int) -> BinaryIO:
        try:
            return Path(file).open("rb")
        except OSError as error:
            raise problem(file, f"cannot be read ({error.strerror})") from None

    def read(self, pieces: Sequence[Piece]) -> list[bytes | UnreadableImage]:
        return [_read(piece) for piece in pieces]


def folder_source(folder: Folder) -> Source:
    """The pictures of class folders."""

    def piece(number: int) -> Piece:
        name = folder.files[number]
        return Piece(name, f"{folder.root}/{name}")

    root = str(folder.root.resolve())
    files, storage = folder.files, LocalFiles()
    return Source(root, folder.split, folder.classes, files, folder.labels, storage, piece, lambda: sizes(folder))


def _read(piece: Piece) -> bytes | UnreadableImage:
    if (piece.size or 0) > MOST_BYTES:
        return UnreadableImage("it is larger than 1 GiB")
    try:
        with Path(piece.file).open("rb") as file:
            file.seek(piece.start)
            data = file.read(MOST_BYTES + 1 if piece.size is None else piece.size)
    except OSError as error:
        return UnreadableImage(error.strerror or str(error))
    if len(data) > MOST_BYTES:
        return UnreadableImage("it is larger than 1 GiB")
    return data if piece.size in (None, len(data)) else UnreadableImage(f"{piece.file} ends within it")


def open_sources(dataset: Dataset, seed: int, path: str, report: Report, *, skip_bad: bool) -> tuple[Source, Source]:
    """The training and validation pictures of a data set, of the same classes.

    With `skip_bad`, a share for validation is drawn from the pictures that can be read.

    Raises:
        UserError: there are none, they cannot be listed, or a class cannot be learnt.
    """
    share = dataset.val_split
    if share is None:
        train, val = same_classes(*(open_source(path, split, report) for split in ("train", "val")))
    elif only_prepared(path):
        message = "takes class folders on this machine; unpack or copy the pictures, or leave it out"
        raise UserError(Problem(message, "dataset.val_split", share))
    else:
        train, val = _divided(dataset, seed, Path(path), report, skip_bad=skip_bad)
    check_classes(train.classes, train.labels, val.labels, "dataset.path", path)
    return train, val


def _divided(dataset: Dataset, seed: int, path: Path, report: Report, *, skip_bad: bool) -> tuple[Source, Source]:
    whole = splits(path, dataset, seed)
    bad = unreadable(path, whole, report) if skip_bad else {}
    train, val = map(folder_source, splits(path, dataset, seed, bad))
    names = {name.removeprefix(whole[0].place): reason for name, reason in bad.items()}
    return replace(train, skipped=names), val


def open_source(path: str, split: str, report: Report) -> Source:
    """The pictures of a split: in class folders, in a tar file of them, or in ImageNet's; of this machine or a URL.

    Raises:
        UserError: there are none, or they cannot be listed.
    """
    storage: Storage = RemoteFiles(path) if is_remote(path) else LocalFiles()
    if path.endswith(TAR):
        if not storage.holds(path):
            raise problem(path, "is no file; give a tar file of class folders, or a folder")
        return class_folders(storage, path, split, report)
    if not is_remote(path) and is_folder(Path(path) / split):
        return folder_source(scan(Path(path), split))
    if storage.holds(below(path, ARCHIVES[split])):
        return imagenet_source(storage, path, split, report)
    if is_remote(path):
        return remote_folders(path, split, report)
    if is_folder(Path(path)):
        raise problem(path, f"holds neither a {split}/ folder of class folders nor {ARCHIVES[split]}")
    return folder_source(scan(Path(path), split))
