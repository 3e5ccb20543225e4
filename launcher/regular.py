"""Read regular files of untrusted folders: no pipe, socket or device blocks, no file fills the memory."""

import os
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO

from launcher.counts import count_of
from launcher.errors import UserError

_MOST_BYTES = 1 << 26
_BLOCK = 1 << 20
_LONGEST_LINE = 1 << 24


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read.

    Raises OSError if it cannot be opened, and UserError if it is a folder, pipe, socket or device.
    """
    # note: opening a device may have effects; a pipe that replaces the file meanwhile must not wait for a writer
    if not S_ISREG(path.stat().st_mode):
        raise _refused(path, "not a regular file")
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))


def read_regular(path: Path, most: int = _MOST_BYTES) -> bytes:
    """Return the bytes of a file.

    Raises as `open_regular`, and UserError if there are more than `most` bytes.
    """
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise _refused(path, f"larger than {count_of(most, 'byte')}")
    return content


def read_lines(path: Path) -> Iterator[bytes]:
    r"""Yield the lines of a file without their ends, the text after the last `\n` too; memory is that of a line.

    Raises as `open_regular`, and UserError if a line is longer than any record, as in a file of zeros.
    """
    with open_regular(path) as file:
        rest = b""
        while block := file.read(_BLOCK):
            *lines, rest = (rest + block).split(b"\n")
            yield from lines
            if len(rest) > _LONGEST_LINE:
                raise _refused(path, f"a line is longer than {_LONGEST_LINE:,} bytes")
        yield rest


def read_last_lines(path: Path, size: int) -> list[bytes]:
    """Return the whole lines in the last `size` bytes of a file.

    Raises as `open_regular`.
    """
    with open_regular(path) as file:
        start = max(0, file.seek(0, os.SEEK_END) - size - 1)
        file.seek(start)
        lines = file.read(size + 1).split(b"\n")
    return lines[1:] if start else lines


def _refused(path: Path, reason: str) -> UserError:
    return UserError(f"{path} cannot be read: {reason}; remove it, or replace it by the file")
