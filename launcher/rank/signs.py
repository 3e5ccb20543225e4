"""Signs between the launcher and a rank: signals that ask it to stop, its life, and a file that says it ended well."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from launcher.errors import one_line

# Environment variables of a rank: what it trains on, cpu or cuda; the command's words; the step that a replay takes.
DEVICE = "TRAIN_DEVICE"
COMMAND = "TRAIN_COMMAND"
REPLAY_STEP = "TRAIN_REPLAY_STEP"
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
        self.requested = False

    def install(self) -> None:
        """Take over the signals; a terminal's Ctrl-C is the launcher's to handle, which asks with SIGTERM."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._set)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _set(self, number: int, frame: FrameType | None) -> None:
        self.requested = True


class Heartbeat:
    """A rank shows life once started: silent for `launch.hang_timeout` it writes its stacks to its log and ends."""

    def __init__(self) -> None:
        self._timeout: float | None = None
        self._last = 0.0
        self._terminal: int | None = None

    def start(self, hang_timeout: float | None) -> None:
        """Begin, with more time up to the first sign; what standard error is now is the terminal."""
        self._timeout, self._terminal = hang_timeout, os.dup(2)
        if hang_timeout is not None:
            faulthandler.dump_traceback_later(max(hang_timeout, SECONDS_TO_START), exit=True, file=2)

    def beat(self) -> None:
        """Progress was made: a step, a batch of an evaluation, a save."""
        now = time.monotonic()
        # note: a thread is started each time
        if self._timeout is not None and now - self._last > min(1, self._timeout / 10):
            self._last = now
            faulthandler.dump_traceback_later(self._timeout, exit=True, file=2)

    def watch_reading(self, stalled: Stalled) -> None:
        """Report a file that is read for too long on the terminal, before the rank counts as hanging."""
        if self._terminal is not None:
            seconds = min(_LONGEST_READ, (self._timeout or 2 * _LONGEST_READ) / 2)
            threading.Thread(target=_watch_reading, args=(stalled, seconds, self._terminal), daemon=True).start()


def _watch_reading(stalled: Stalled, seconds: float, terminal: int) -> None:
    reported = None
    while True:
        path = stalled(seconds)
        if path not in (None, reported):
            text = f"rank {os.environ['RANK']} is waiting to read {path}; check that its disk responds"
            with suppress(OSError):
                os.write(terminal, f"warning: {one_line(text)}\n".encode())
        reported = path
        time.sleep(seconds / 10)


# This process's own; the flag is installed before anything slow is imported, so that an early signal is not lost.
STOP = StopFlag()
HEARTBEAT = Heartbeat()


def done_file(scratch: Path, process: int) -> Path:
    """What a rank leaves when it ends well."""
    return scratch / f"done-{process}"


def name_after(scratch: Path) -> None:
    """Have this process, and those it starts, put sockets into the scratch folder and name semaphores after it."""
    # note: no public setting, but every process that multiprocessing starts is given a copy of it
    settings = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    settings["tempdir"], settings["semprefix"] = str(scratch), f"/{scratch.name}"


def remove_semaphores(scratch: Path) -> None:
    """Remove those named after a scratch folder; no process may need them any more."""
    for path in _SEMAPHORES.glob(f"sem.{scratch.name}-*"):
        path.unlink(missing_ok=True)
