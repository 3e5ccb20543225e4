"""Signs of life: a rank touches a file at every step, the launcher notices when it no longer does.

A rank that waits for its disk leaves another file, which says so.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from launcher import atomic
from launcher.errors import one_line

DUMP_SIGNAL = signal.SIGUSR2
_STALL = "stall-"
_LONGEST_READ = 10.0  # seconds
SECONDS_TO_START = 600.0  # at least, to the first step: imports, reading folders, meeting the other ranks

# (seconds) -> a file that has been read for longer
Stalled = Callable[[float], Path | None]


class Heartbeat:
    """A rank's side: silent until started."""

    def __init__(self) -> None:
        self._path: Path | None = None

    def start(self, scratch: Path) -> None:
        """Begin to show life, and write every thread's stack to this process's standard error when asked."""
        faulthandler.register(DUMP_SIGNAL, file=sys.stderr, all_threads=True)
        self._path = beat_file(scratch, os.getpid())
        self._path.touch()

    def beat(self) -> None:
        """Progress was made: a step, a batch of an evaluation, a save."""
        if self._path is not None:
            os.utime(self._path)

    def watch_reading(self, stalled: Stalled, hang_timeout: float | None) -> None:
        """Tell the launcher, before the run counts as hanging, of a file that is read for too long."""
        if self._path is not None:
            seconds = min(_LONGEST_READ, (hang_timeout or 2 * _LONGEST_READ) / 2)
            target = stall_file(self._path.parent, os.getpid())
            threading.Thread(target=_watch_reading, args=(stalled, seconds, target), daemon=True).start()


def _watch_reading(stalled: Stalled, seconds: float, target: Path) -> None:
    while True:
        path = stalled(seconds)
        if path is None:
            target.unlink(missing_ok=True)
        elif not target.exists():
            text = f"rank {os.environ['RANK']} waits for data, reading {path}: does its disk still answer?"
            atomic.write_text(target, one_line(text))
        time.sleep(seconds / 10)


# This process's heartbeat.
HEARTBEAT = Heartbeat()


def beat_file(scratch: Path, process: int) -> Path:
    return scratch / f"beat-{process}"


def stall_file(scratch: Path, process: int) -> Path:
    """Where a rank leaves a line on a file that it has been reading for too long."""
    return scratch / f"{_STALL}{process}"


def told_stalls(scratch: Path) -> dict[int, str]:
    """The process ids of all ranks that read a file for too long, and a line on it."""
    found = {}
    for path in scratch.glob(f"{_STALL}*[0-9]"):
        with suppress(FileNotFoundError):
            found[int(path.name.removeprefix(_STALL))] = path.read_text()
    return found


_SEMAPHORES = Path("/dev/shm")


def name_after(scratch: Path) -> None:
    """Have this process, and those it starts, put sockets into the scratch folder and name semaphores after it."""
    # note: no public setting, but every process that multiprocessing starts is given a copy of it
    settings = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    settings["tempdir"], settings["semprefix"] = str(scratch), f"/{scratch.name}"


def remove_semaphores(scratch: Path) -> None:
    """Remove those named after a scratch folder; no process may need them any more."""
    for path in _SEMAPHORES.glob(f"sem.{scratch.name}-*"):
        path.unlink(missing_ok=True)
