"""Read the bytes of images: of separate files, parts of archives, and copies of those; imports no torch.

Archives in buckets are copied to this machine, also Parquet's images, which are compressed in blocks. The
first process that needs an archive copies it, others wait; an interrupted copy resumes.
"""

import hashlib
import os
import shutil
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO

from launcher import paths
from launcher.data.decode import UnreadableImage, attempt
from launcher.data.index import MOST_BYTES, Piece
from launcher.data.sources.layout import is_remote
from launcher.data.sources.parquet import parquet_bytes
from launcher.data.sources.source import RETRY, Files
from launcher.errors import Problem, UserError
from launcher.files.disk import DiskError, patiently, reason
from launcher.files.locks import lock

_CHUNK = 1 << 24
_SUFFIX, _PARTIAL = ".copy", ".partial"
_OPEN_FILES = 64
_KEPT = "; finished images are kept: run the same command to resume"


def read(piece: Piece) -> bytes:
    """Return the bytes of an image.

    Raises UnreadableImage if they are missing or damaged, UserError if a bucket cannot be read, or no copy can be
    made, and DiskError if the disk fails, not the image.
    """
    if is_remote(piece.file) and not piece.version:
        (content,) = read_all(Files(piece.file), [piece], RETRY)
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


def read_all(files: Files, pieces: Sequence[Piece], remedy: str = _KEPT) -> list[bytes | UnreadableImage]:
    """Read the bytes of images, or the reason why one cannot be read; those of a bucket at once.

    Raises UserError with a remedy if reading fails for all, for example without a network.
    """
    if is_remote(files.url) and not any(piece.deflated or piece.column for piece in pieces):
        return files.fetch(pieces, remedy)
    return [attempt(read, piece) for piece in pieces]


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


def local_copy(file: str, version: str, column: str = "") -> Path:
    """Return the copy of an archive, or of the images in a table's column, which it makes if there is none.

    Raises UserError if the archive has changed, cannot be read, or the disk is full.
    """
    key = hashlib.sha256(" ".join(filter(None, [file, version, column])).encode()).hexdigest()[:24]
    copy = paths.cache() / "shards" / f"{key}{_SUFFIX}"
    if _used(copy):
        return copy
    files = Files(file)
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        with copy.with_suffix(_PARTIAL).open("ab") as partial:
            release = lock(partial.fileno(), Path(partial.name), wait=True)
            try:
                if _used(copy):
                    return copy
                if files.version(file) != version:
                    raise UserError(Problem(f"{file} has changed since it was listed; run again", "dataset.path", file))
                for chunk in _chunks(files, file, column, partial):
                    partial.write(chunk)
                partial.flush()
                Path(partial.name).rename(copy)
            finally:
                release()
    except OSError as error:
        message = f"{copy.parent} cannot be written: {reason(error)}; or set XDG_CACHE_HOME"
        raise UserError(Problem(message, "dataset.path", file)) from None
    _remove_oldest(copy)
    return copy


def _used(copy: Path) -> bool:
    """Note the use of a copy; return whether it exists."""
    with suppress(OSError):
        os.utime(copy)
        return True
    return False


def _chunks(files: Files, file: str, column: str, partial: BinaryIO) -> Iterator[bytes]:
    """Yield the bytes of a copy after those that an interrupted process has written.

    Raises UserError if they cannot be read.
    """
    if column:
        partial.truncate(0)
    with files.reached(f"; what was read is kept{RETRY}"), files.open(file, _CHUNK) as opened:
        yield from parquet_bytes(opened, file, column) if column else _rest(opened, partial.seek(0, 2))


def _rest(file: BinaryIO, start: int) -> Iterator[bytes]:
    end = file.seek(0, 2)
    file.seek(start)
    while file.tell() < end:
        if not (chunk := file.read(_CHUNK)):
            raise EOFError("ends before its last byte")
        yield chunk


def _remove_oldest(newest: Path) -> None:
    """Remove the copies that have not been used for longest until the copies take at most half of the free disk."""
    facts = []
    for copy in newest.parent.glob(f"*{_SUFFIX}"):
        with suppress(OSError):
            facts.append((copy.stat().st_mtime_ns, copy.stat().st_size, copy))
    total = sum(size for _, size, _ in facts)
    most = (total + shutil.disk_usage(newest.parent).free) // 2
    for _, size, copy in sorted(facts):
        if total <= most or copy == newest:
            return
        copy.unlink(missing_ok=True)
        total -= size
