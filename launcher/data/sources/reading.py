"""Read the bytes of images: of separate files, parts of archives, and copies of those; imports no torch."""

import os
import zlib
from collections.abc import Sequence
from functools import lru_cache
from stat import S_ISREG
from typing import BinaryIO

from launcher.data.decode import UnreadableImage
from launcher.data.sources.copies import local_copy
from launcher.data.sources.layout import is_remote
from launcher.data.sources.pieces import MOST_BYTES, Piece
from launcher.data.sources.source import RETRY, Files
from launcher.disk import DiskError, patiently

_OPEN_FILES = 64
_KEPT = "; finished images are kept: run the same command to resume"


def read(piece: Piece) -> bytes:
    """Return the bytes of an image.

    Raises UnreadableImage if they are missing or damaged, UserError if a bucket cannot be read, or no copy can be
    made, and DiskError if the disk fails, not the image.
    """
    if is_remote(piece.file) and not piece.version:
        (content,) = read_remote([piece])
        if isinstance(content, UnreadableImage):
            raise content
        return content
    try:
        data, size = patiently(lambda: _bytes(piece), piece.file)
    except DiskError as error:
        if error.may_pass:
            raise
        raise UnreadableImage(getattr(error.__cause__, "strerror", None) or str(error)) from None
    except (OSError, zlib.error) as error:
        raise UnreadableImage(getattr(error, "strerror", None) or str(error)) from None
    if len(data) < size:
        raise UnreadableImage(f"{piece.file} ends before its last byte")
    return data


def read_all(files: Files, pieces: Sequence[Piece]) -> list[bytes | UnreadableImage]:
    """Read the bytes of images, or the reason why one cannot be read; those of a bucket at once.

    Raises UserError if reading fails for all, for example without a network.
    """
    if is_remote(files.url) and not any(piece.deflated or piece.column for piece in pieces):
        return files.fetch(pieces, _KEPT)
    return [_content(piece) for piece in pieces]


def read_remote(pieces: Sequence[Piece]) -> list[bytes | UnreadableImage]:
    """Read images of a bucket at once; return the bytes of each, or why it cannot be read.

    Raises UserError if the bucket cannot be read.
    """
    return Files(pieces[0].file).fetch(pieces, RETRY)


def _content(piece: Piece) -> bytes | UnreadableImage:
    try:
        return read(piece)
    except UnreadableImage as reason:
        return reason


def _bytes(piece: Piece) -> tuple[bytes, int]:
    """Return the bytes of an image, and how many it has."""
    size = _size(piece.file) if piece.size is None else piece.size
    if size > MOST_BYTES:
        raise UnreadableImage("larger than 1 GiB")
    if piece.size is None:
        with open(piece.file, "rb") as file:  # noqa: PTH123 - of a million files
            return file.read(), 0
    opened = _opened(piece.file, piece.version, piece.column)
    data = os.pread(opened.fileno(), piece.deflated or size, piece.start)
    if piece.deflated:
        data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size)
    return data, size


def _size(file: str) -> int:
    facts = os.stat(file)  # noqa: PTH116 - as above
    # note: opening a pipe would wait for a writer
    if not S_ISREG(facts.st_mode):
        raise UnreadableImage("not a regular file")
    return facts.st_size


@lru_cache(_OPEN_FILES)
def _opened(file: str, version: str, column: str) -> BinaryIO:
    # note: a copy stays readable after its removal while it is open
    return open(local_copy(file, version, column) if version else file, "rb", buffering=0)  # noqa: PTH123
