"""Locks of files, which end with their process; where a file system has none, leases: files with a heartbeat."""

import errno
import fcntl
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from launcher.files.disk import DiskError

# note: Lustre without the mount option flock, some NFS servers, and some file systems of FUSE
UNSUPPORTED = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
# A lease without a heartbeat for so long has ended.
_SECONDS = 30.0
_LONGEST = 500


class Held(Exception):
    """Another process holds the lock; the text describes it."""


def lock(file: int, path: Path, *, wait: bool = False) -> Callable[[], object]:
    """Lock an open file, whose first line describes the holder; return what to call before it is closed.

    Raises Held if another process holds the lock, unless it shall `wait`, and DiskError if it cannot be locked.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        with path.open("rb") as opened:
            holder = opened.readline(_LONGEST).decode(errors="replace").strip()
        raise Held(holder or "another process") from None
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise DiskError.of(error, path) from None
        return _leased(path, wait=wait)
    return lambda: None


def note_holder(file: int) -> None:
    """Write this process into a locked file, so that others can name it."""
    # note: the disk may be full
    with suppress(OSError):
        os.ftruncate(file, 0)
        os.write(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode())


def is_leased(folder: Path) -> bool:
    """Return whether a process of any machine holds a lease in a folder, by the time of its heartbeat."""
    with suppress(OSError):
        leases = [lease.stat().st_mtime for lease in folder.glob(".*.lease")]
        return bool(leases) and _now(folder) - max(leases) < _SECONDS
    return False


def _now(folder: Path) -> float:
    """Return the time of the clock that dates the files of a folder: that of a file server may differ from ours."""
    with suppress(OSError), tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        file.write(b"\n")
        return os.fstat(file.fileno()).st_mtime
    return time.time()


def _leased(path: Path, *, wait: bool) -> Callable[[], object]:
    from filelock import SoftFileLease, Timeout  # note: takes a tenth of a second

    _note(path.parent)
    # note: any thread may release it
    lease = SoftFileLease(path.with_name(f".{path.name}.lease"), lease_duration=_SECONDS, thread_local=False)
    owner = lease.owner
    # note: the library looks for a process of this machine, and waits for the heartbeat of another's
    seconds = 1.0 if owner and owner.hostname == socket.gethostname() else 1.2 * _SECONDS
    try:
        lease.acquire(timeout=-1 if wait else seconds)
    except Timeout:
        holder = lease.owner
        raise Held(f"process {holder.pid} on {holder.hostname}" if holder else "another process") from None
    except OSError as error:
        raise DiskError.of(error, path) from None
    return lease.release


@cache
def _note(folder: Path) -> None:
    note = f"the file system of {folder} has no locks; a lease, a file with a heartbeat, excludes other processes"
    print(f"note: {note}", file=sys.stderr, flush=True)
