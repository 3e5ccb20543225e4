"""Find ranks that make no progress, by the time that this process was given: a suspended run does not hang."""

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

import psutil

from launcher.rank.signs import SECONDS_TO_START, beat_file

_INTERVAL = 0.5  # seconds
_LONGEST_TICK = 1.0  # seconds; of a longer pause this process was suspended too


class HangWatch:
    """Count the seconds without a beat of each rank, and those in which it is stopped, such as by SIGSTOP.

    hang_timeout: in seconds; null disables it.
    """

    def __init__(self, scratch: Path, hang_timeout: float | None, clock: Callable[[], float] = time.monotonic):
        self._scratch, self._timeout, self._clock = scratch, hang_timeout, clock
        self._last = clock()
        self._beats: dict[int, int | None] = {}
        self._silent: dict[int, float] = {}
        self._stopped: dict[int, float] = {}

    def hanging(self, ranks: Collection[int]) -> tuple[int, str] | None:
        """Return a rank, a process id, that hangs, and why; call it often with the ranks that run."""
        if self._timeout is None or (passed := self._clock() - self._last) < _INTERVAL:
            return None
        given, self._last = min(passed, _LONGEST_TICK), self._last + passed
        for rank in ranks:
            beat = self._beat(rank)
            self._silent[rank] = self._silent.get(rank, 0.0) + given if beat == self._beats.get(rank) else 0.0
            self._stopped[rank] = self._stopped.get(rank, 0.0) + given if is_stopped(rank) else 0.0
            self._beats[rank] = beat
        # note: its peers wait for a stopped rank, so it is found before they count as hanging
        for rank in ranks:
            if self._stopped[rank] > self._timeout / 2:
                return rank, "was stopped, by SIGSTOP or a debugger"
        for rank in sorted(ranks, key=lambda rank: -self._silent[rank]):
            started = self._beats[rank] is not None
            if self._silent[rank] > (self._timeout if started else max(self._timeout, SECONDS_TO_START)):
                return rank, "made no progress for launch.hang_timeout seconds; see its stacks"
        return None

    def _beat(self, rank: int) -> int | None:
        with suppress(OSError):
            return beat_file(self._scratch, rank).stat().st_mtime_ns
        return None


def is_stopped(process: int) -> bool:
    with suppress(psutil.Error):
        return psutil.Process(process).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    return False
