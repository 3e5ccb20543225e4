"""Whole writes, and errors of disks and file servers: one line with path, meaning and remedy, and retries."""

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from launcher.errors import MachineError, one_line

T = TypeVar("T")

# Seconds before each repetition of a call whose error may pass.
PAUSES = (0.1, 0.4, 1.5, 6.0)

_SERVER = "check the disk or its file server, and try again"
_DENIED = "change its permissions, or choose another folder"
_REMEDIES = {
    errno.ENOSPC: "free some space, or choose another disk",
    errno.EDQUOT: "remove some of your files, or raise the quota",
    errno.EFBIG: "raise the limit of file sizes (ulimit -f), or choose another disk",
    errno.EROFS: "mount it writable, or choose another folder",
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.EIO: _SERVER,
    errno.ESTALE: _SERVER,
    errno.ETIMEDOUT: _SERVER,
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "close other programs: the machine has too many open files",
    errno.EAGAIN: "try again",
}
# note: a network file system may respond again, and a process may close files
_PASSING = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EMFILE, errno.ENFILE)
_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


class DiskError(MachineError):
    """A file that cannot be read or written, whose content is unknown; `may_pass`: a retry may succeed."""

    def __init__(self, message: str, may_pass: bool = False):
        super().__init__(message)
        self.may_pass = may_pass

    @classmethod
    def of(cls, error: OSError, path: Path | str | None = None) -> "DiskError":
        """Describe an error; `path` is used if the error has none."""
        return cls(line(error, path), error.errno in _PASSING)


def line(error: OSError, path: Path | str | None = None) -> str:
    """Return an error in one line: its path, meaning and remedy."""
    return one_line(f"{error.filename or path or 'standard output'}: {reason(error)}")


def reason(error: OSError, remedy: str | None = None) -> str:
    """Return the meaning of an error and its remedy; `remedy` is that of an unknown error."""
    meaning = error.strerror or str(error) or type(error).__name__
    return "; ".join(filter(None, [meaning, _REMEDIES.get(error.errno or 0, remedy)]))


def is_known(error: OSError) -> bool:
    """Return whether an error has a remedy, unlike one of a network or of the program."""
    return error.errno in _REMEDIES


def patiently(call: Callable[[], T], path: Path | str) -> T:
    """Call a function that reads a file, and repeat it for some seconds while its error may pass.

    Raises FileNotFoundError or NotADirectoryError if there is no such file, and DiskError if it cannot be read.
    """
    for pause in (*PAUSES, None):
        try:
            return call()
        except OSError as error:
            if error.errno in _MISSING:
                raise
            if pause is None or error.errno not in _PASSING:
                raise DiskError.of(error, path) from error
            time.sleep(pause)
    raise AssertionError


def is_there(path: Path) -> bool:
    """Return whether a file or folder exists; False for impossible names.

    Raises DiskError if that cannot be read: `Path.exists` of Python 3.14 would be False.
    """
    try:
        patiently(path.stat, path)
    except (OSError, ValueError):
        return False
    return True


def write_all(file: int, data: bytes, offset: int) -> None:
    """Write all data; one call of the system may write less, and at most 2 GiB."""
    view = memoryview(data)
    while view:
        done = os.pwrite(file, view, offset)
        view, offset = view[done:], offset + done
