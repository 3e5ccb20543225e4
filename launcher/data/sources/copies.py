"""Copies of archives on this machine: of those in buckets, and of Parquet's images, which are compressed in blocks.

The first process that needs an archive copies it, others wait; an interrupted copy resumes. Imports no torch.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from launcher import paths
from launcher.data.sources.parquet import parquet_bytes
from launcher.data.sources.source import RETRY, Files
from launcher.disk import reason
from launcher.errors import Problem, UserError
from launcher.locks import lock

_CHUNK = 1 << 24
_SUFFIX, _PARTIAL = ".copy", ".partial"


def local_copy(file: str, version: str, column: str = "") -> Path:
    """Return the copy of an archive, or of the images in a table's column, which it makes if there is none.

    Raises UserError if the archive has changed, cannot be read, or the disk is full.
    """
    folder = paths.cache() / "shards"
    copy = (
        folder
        / f"{hashlib.sha256(' '.join([file, version, *filter(None, [column])]).encode()).hexdigest()[:24]}{_SUFFIX}"
    )
    if _used(copy):
        return copy
    files = Files(file)
    try:
        folder.mkdir(parents=True, exist_ok=True)
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
    try:
        with files.open(file, _CHUNK) as opened:
            yield from parquet_bytes(opened, file, column) if column else _rest(opened, partial.seek(0, 2))
    except (UserError, GeneratorExit):
        raise
    # note: file systems raise arbitrary errors
    except Exception as error:
        raise files.unreachable(error, f"; what was read is kept{RETRY}") from None


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
