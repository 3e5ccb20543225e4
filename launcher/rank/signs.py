"""Signs between the launcher and a rank: signals that ask it to stop, and the files that it leaves in a scratch folder.

A rank touches one file at every step, writes another while it waits for its disk, and a third when it ends; their names
end in its process id.
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
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Literal

from launcher import atomic
from launcher.errors import one_line

# Environment variables of a rank: what it trains on, cpu or cuda, and the step that a replay takes.
DEVICE = "TRAIN_DEVICE"
REPLAY_STEP = "TRAIN_REPLAY_STEP"
DUMP_SIGNAL = signal.SIGUSR2
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
SECONDS_TO_START = 600.0  # at least, to the first step: imports, reading folders, meeting the other ranks
_LONGEST_READ = 10.0  # seconds
_SEMAPHORES = Path("/dev/shm")

# (seconds) -> a file that has been read for longer
Stalled = Callable[[float], Path | None]


@dataclass(frozen=True)
class Requests:
    """What a rank requests of the run, or any rank does; sent between ranks with a step's own flags, on the device."""

    stop: bool = False
    save: bool = False


NO_REQUESTS = Requests()


class StopFlag:
    """Set by SIGTERM or SIGUSR1 in a rank."""

    def __init__(self) -> None:
        self.asked = False

    def install(self) -> None:
        """Take over the signals; a terminal's Ctrl-C is the launcher's to handle, which asks with SIGTERM."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._set)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _set(self, number: int, frame: FrameType | None) -> None:
        self.asked = True


class Heartbeat:
    """A rank's sign of life: silent until started."""

    def __init__(self) -> None:
        self._scratch: Path | None = None

    def start(self, scratch: Path) -> None:
        """Begin to show life, and write every thread's stack to this process's standard error when asked."""
        faulthandler.register(DUMP_SIGNAL, file=sys.stderr, all_threads=True)
        self._scratch = scratch
        sign_file(scratch, "beat", os.getpid()).touch()

    def beat(self) -> None:
        """Progress was made: a step, a batch of an evaluation, a save."""
        if self._scratch is not None:
            os.utime(sign_file(self._scratch, "beat", os.getpid()))

    def watch_reading(self, stalled: Stalled, hang_timeout: float | None) -> None:
        """Report a file that is read for too long to the launcher, before the run counts as hanging."""
        if self._scratch is not None:
            seconds = min(_LONGEST_READ, (hang_timeout or 2 * _LONGEST_READ) / 2)
            target = sign_file(self._scratch, "stall", os.getpid())
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


# This process's own; the flag is installed before anything slow is imported, so that an early signal is not lost.
STOP = StopFlag()
HEARTBEAT = Heartbeat()


def sign_file(scratch: Path, kind: Literal["beat", "done", "stall"], process: int) -> Path:
    """What a rank touches at every step, leaves at a good end, or writes while it waits for a file."""
    return scratch / f"{kind}-{process}"


def stalled_ranks(scratch: Path) -> dict[int, str]:
    """The process ids of all ranks that read a file for too long, and a line on it."""
    stalls = {}
    for path in scratch.glob("stall-*[0-9]"):
        with suppress(FileNotFoundError):
            stalls[int(path.name.partition("-")[2])] = path.read_text()
    return stalls


def name_after(scratch: Path) -> None:
    """Have this process, and those it starts, put sockets into the scratch folder and name semaphores after it."""
    # note: no public setting, but every process that multiprocessing starts is given a copy of it
    settings = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    settings["tempdir"], settings["semprefix"] = str(scratch), f"/{scratch.name}"


def remove_semaphores(scratch: Path) -> None:
    """Remove those named after a scratch folder; no process may need them any more."""
    for path in _SEMAPHORES.glob(f"sem.{scratch.name}-*"):
        path.unlink(missing_ok=True)
