"""Pictures of this machine's files: of class folders, each a file, or of a tar file, each a part; imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from launcher.data.decode import NoPicture
from launcher.data.folder import Folder, sizes
from launcher.data.sources.source import Piece, Source, problem

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

    def read(self, pieces: Sequence[Piece]) -> list[bytes | NoPicture]:
        return [_read(piece) for piece in pieces]


def folder_source(folder: Folder) -> Source:
    """The pictures of class folders."""

    def piece(number: int) -> Piece:
        name = folder.files[number]
        return Piece(name, f"{folder.root}/{name}")

    root = str(folder.root.resolve())
    files, storage = folder.files, LocalFiles()
    return Source(root, folder.split, folder.classes, files, folder.labels, storage, piece, lambda: sizes(folder))


def _read(piece: Piece) -> bytes | NoPicture:
    if (piece.size or 0) > MOST_BYTES:
        return NoPicture("it is larger than 1 GiB")
    try:
        with Path(piece.file).open("rb") as file:
            file.seek(piece.start)
            data = file.read(MOST_BYTES + 1 if piece.size is None else piece.size)
    except OSError as error:
        return NoPicture(error.strerror or str(error))
    if len(data) > MOST_BYTES:
        return NoPicture("it is larger than 1 GiB")
    return data if piece.size in (None, len(data)) else NoPicture(f"{piece.file} ends within it")
