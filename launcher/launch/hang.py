"""Find ranks that make no progress, by the time that this process was given: a suspended run does not hang."""

import re
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from launcher.rank.main import log_file
from launcher.rank.signs import SECONDS_TO_CONNECT, SECONDS_TO_START, beat_file, connecting_file

_INTERVAL = 0.5  # seconds
_LONGEST_TICK = 1.0  # seconds; of a longer pause this process was suspended too
_STACKS = 50_000  # characters at the end of a log
_FRAME = re.compile(r'File "(.+)", line (\d+) in (\S+)')
_PACKAGE = str(Path(__file__).parents[1])


@dataclass(frozen=True)
class Hang:
    """The ranks, process ids, that make no progress, and why they count as hanging.

    `advice` is what to try. `passes`: it need not happen again.
    """

    processes: tuple[int, ...]
    reason: str
    advice: str = ""
    passes: bool = False


class HangWatch:
    """Count the seconds without a beat of each rank, and those in which it is stopped, such as by SIGSTOP.

    hang_timeout: in seconds; null disables it. seconds_to_connect: once all ranks of this machine connect.
    """

    def __init__(
        self,
        scratch: Path,
        hang_timeout: float | None,
        clock: Callable[[], float] = time.monotonic,
        seconds_to_connect: float = SECONDS_TO_CONNECT,
    ):
        self._scratch, self._timeout, self._clock = scratch, hang_timeout, clock
        self._last, self._connecting, self._seconds_to_connect = clock(), 0.0, seconds_to_connect
        self._beats: dict[int, int | None] = {}
        self._silent: dict[int, float] = {}
        self._stopped: dict[int, float] = {}

    def hanging(self, ranks: Collection[int]) -> Hang | None:
        """Return the ranks, process ids, that hang; call it often with the ranks that run."""
        if self._timeout is None or (passed := self._clock() - self._last) < _INTERVAL:
            return None
        given, self._last = min(passed, _LONGEST_TICK), self._last + passed
        for rank in ranks:
            beat = self._beat(rank)
            self._silent[rank] = self._silent.get(rank, 0.0) + given if beat == self._beats.get(rank) else 0.0
            self._stopped[rank] = self._stopped.get(rank, 0.0) + given if is_stopped(rank) else 0.0
            self._beats[rank] = beat
        # note: its peers wait for a stopped rank, so it is found before they count as hanging
        if stopped := [rank for rank in ranks if self._stopped[rank] > self._timeout / 2]:
            return Hang(
                (*stopped,), f"{'were' if stopped[1:] else 'was'} stopped, by SIGSTOP or a debugger", passes=True
            )
        connect = [connecting_file(beat_file(self._scratch, rank)).exists() for rank in ranks]
        self._connecting = self._connecting + given if ranks and all(connect) else 0.0
        if self._connecting > self._seconds_to_connect:
            advice = "set NCCL_DEBUG=INFO to see why, try NCCL_P2P_DISABLE=1, or type train doctor"
            return Hang((*ranks,), f"did not connect within {self._seconds_to_connect:g} s", advice)
        limits = {rank: self._limit(self._timeout, rank) for rank in ranks}
        if not any(self._silent[rank] > limit for rank, limit in limits.items()):
            return None
        # note: the others wait for the one that hangs, and have been silent for a little less
        silent = [rank for rank in ranks if self._silent[rank] > limits[rank] / 2]
        longest_first = sorted(silent, key=lambda rank: -self._silent[rank])
        return Hang((*longest_first,), "made no progress for launch.hang_timeout seconds")

    def _limit(self, timeout: float, rank: int) -> float:
        return max(timeout, SECONDS_TO_START) if self._beats[rank] is None else timeout

    def _beat(self, rank: int) -> int | None:
        with suppress(OSError):
            return beat_file(self._scratch, rank).stat().st_mtime_ns
        return None


def is_stopped(process: int) -> bool:
    with suppress(psutil.Error):
        return psutil.Process(process).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    return False


def describe_hang(hang: Hang, numbers: Mapping[int, int], run_folder: Path) -> str:
    """Describe which ranks hang and where each waits; `numbers` are the ranks by process id."""
    ranks = [numbers[process] for process in hang.processes if process in numbers]
    # note: those that connect are all silent
    ranks = sorted(ranks) if hang.advice else ranks
    places: dict[str, list[int]] = {}
    for rank in ranks:
        places.setdefault(_place(log_file(run_folder, rank)), []).append(rank)
    waits = [f"{_named(own)} in {place}" for place, own in places.items() if place]
    logs = f"full log: {log_file(run_folder, ranks[0])}"
    return "; ".join([f"{_named(ranks)} {hang.reason}", *waits, *([hang.advice] if hang.advice else [])]) + f" ({logs})"


def _named(ranks: Collection[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _place(log: Path) -> str:
    """Return the launcher's innermost call in the stack that a rank has written last; empty without one."""
    with suppress(OSError):
        stack = log.read_text(encoding="utf-8", errors="replace")[-_STACKS:].rpartition("Current thread")[2]
        frames = _FRAME.findall(stack)
        own = [frame for frame in frames if frame[0].startswith(_PACKAGE)]
        for path, line, function in (own or frames)[:1]:
            return f"{function} ({Path(path).name}:{line})"
    return ""
