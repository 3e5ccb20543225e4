"""Signs between the launcher and a rank: stop signals, the heartbeat, and the file of a rank that succeeded."""

import faulthandler
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from launcher.errors import TERMINATED, one_line

# Environment variables of a rank: its device, cpu or cuda; the file where the ranks of one node meet, empty on several;
# the network interface to the other ranks; the command line; in JSON the cores of each rank of the node, empty if it
# may use all.
DEVICE = "TRAIN_DEVICE"
STORE = "TRAIN_STORE"
INTERFACE = "TRAIN_INTERFACE"
COMMAND = "TRAIN_COMMAND"
CORES = "TRAIN_CORES"
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
WRITE_STACKS = signal.SIGUSR2
STOPPED = "stopped"  # text of the file of a rank that ended after a stop signal to any rank
SECONDS_TO_START = 600.0  # minimum until the first step: imports, listing folders, connecting to the other ranks
SECONDS_TO_CONNECT = 120.0  # to the other ranks of a machine, once all have started to
_LONGEST_READ = 10.0  # seconds
_LONGEST_WAIT = 6.0  # seconds after a stop request
_INTERVAL = 0.5  # seconds
_SEMAPHORES = Path("/dev/shm")

# (seconds) -> a file whose read has taken longer, or None
Stalled = Callable[[float], Path | str | None]


@dataclass(frozen=True)
class Requests:
    """What a rank, or any rank, requests of the run; the all-reduce of a step's flags on the device carries it."""

    stop: bool = False
    save: bool = False


NO_REQUESTS = Requests()


class StopFlag:
    """Set by SIGTERM or SIGUSR1 in a rank."""

    def __init__(self) -> None:
        self.requested = False
        self._wait: object = None

    def install(self) -> None:
        """Handle the signals; the launcher handles Ctrl-C and sends SIGTERM."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._set)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _set(self, number: int, frame: FrameType | None) -> None:
        self.requested = True

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark a wait for data, such as a batch, which may come from a server that does not respond."""
        self._wait = object()
        try:
            yield
        finally:
            self._wait = None

    def end_waits(self) -> None:
        """Start a thread that ends this process if, after a stop request, a wait for data takes too long."""
        threading.Thread(target=self._end_waits, daemon=True).start()

    def _end_waits(self) -> None:
        wait, seconds = None, 0.0
        while seconds < _LONGEST_WAIT:
            time.sleep(_INTERVAL)
            is_same = self.requested and self._wait is not None and self._wait is wait
            # note: counts ticks, because the clock also advances while this process is suspended
            wait, seconds = self._wait, seconds + _INTERVAL if is_same else 0.0
        os._exit(TERMINATED)


class Heartbeat:
    """Show the launcher that this rank makes progress; without it for `launch.hang_timeout` the launcher ends the rank.

    At the launcher's signal, WRITE_STACKS, the rank writes the stacks of its threads to its log.
    """

    def __init__(self) -> None:
        self._timeout: float | None = None
        self._last = 0.0
        self._terminal: int | None = None
        self._file: Path | None = None

    def start(self, file: Path, hang_timeout: float | None) -> None:
        """Start, with the file to touch at each beat; standard error must still be the terminal."""
        self._file, self._timeout, self._terminal = file, hang_timeout, os.dup(2)
        faulthandler.register(WRITE_STACKS, file=2)

    def beat(self) -> None:
        """Report progress: a step, a batch of an evaluation, a checkpoint."""
        now = time.monotonic()
        if self._file is not None and self._timeout is not None and now - self._last > min(1, self._timeout / 10):
            self._last = now
            # note: the launcher removes its folder before the last rank has ended, if it is killed
            with suppress(OSError):
                self._file.touch()

    @contextmanager
    def connecting(self) -> Iterator[None]:
        """Mark that this rank connects to the others, which the launcher limits by SECONDS_TO_CONNECT."""
        sign = None if self._file is None else connecting_file(self._file)
        if sign is not None:
            sign.touch()
        yield
        if sign is not None:
            with suppress(OSError):
                sign.unlink()

    def watch_reading(self, stalled: Stalled) -> None:
        """Warn on the terminal about a file whose read takes too long, before the rank counts as hanging."""
        if self._terminal is not None:
            seconds = min(_LONGEST_READ, (self._timeout or 2 * _LONGEST_READ) / 2)
            threading.Thread(target=_watch_reading, args=(stalled, seconds, self._terminal), daemon=True).start()


def _watch_reading(stalled: Stalled, seconds: float, terminal: int) -> None:
    reported = None
    while True:
        path = stalled(seconds)
        if path not in (None, reported):
            text = f"rank {os.environ['RANK']} is waiting to read {path}; check that its disk or bucket responds"
            with suppress(OSError):
                os.write(terminal, f"warning: {one_line(text)}\n".encode())
        reported = path
        time.sleep(seconds / 10)


# Of this process; the flag is installed before slow imports, so that no early signal is lost.
STOP = StopFlag()
HEARTBEAT = Heartbeat()


def done_file(scratch: Path, process: int) -> Path:
    """Return the file that a rank creates when it succeeds or was stopped."""
    return scratch / f"done-{process}"


def beat_file(scratch: Path, process: int) -> Path:
    """Return the file that a rank touches at each beat."""
    return scratch / f"beat-{process}"


def connecting_file(beats: Path) -> Path:
    """Return the file that exists while a rank connects to the others, by its file of beats."""
    return beats.with_suffix(".connecting")


def name_after(scratch: Path) -> None:
    """Make this process and its children put sockets into the scratch folder and name semaphores after it."""
    # note: not a public setting, but multiprocessing copies it to every process that it starts
    settings = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    settings["tempdir"], settings["semprefix"] = str(scratch), f"/{scratch.name}"


def remove_semaphores(scratch: Path) -> None:
    """Remove the semaphores that are named after a scratch folder; no process may use them any more."""
    for path in _SEMAPHORES.glob(f"sem.{scratch.name}-*"):
        path.unlink(missing_ok=True)
