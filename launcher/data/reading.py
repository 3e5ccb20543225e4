"""Which picture each reader of a loader, a thread or a process, reads now: a disk that stalls says nothing itself."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager

_NOTHING = -1


class Reading:
    """What so many readers read and since when, in memory that the processes of a loader share."""

    def __init__(self, readers: int):
        # note: two numbers for each reader: the picture, and the seconds of the clock that all processes have
        self._table = multiprocessing.get_context("forkserver").RawArray("d", [_NOTHING, 0.0] * readers)

    @contextmanager
    def picture(self, number: int, reader: int = 0) -> Iterator[None]:
        """While a reader reads a picture."""
        self._table[2 * reader + 1] = time.monotonic()
        self._table[2 * reader] = number
        try:
            yield
        finally:
            self._table[2 * reader] = _NOTHING

    def stalled(self, seconds: float) -> int | None:
        """A picture that has been read for more than so many seconds."""
        latest = time.monotonic() - seconds
        for number, since in zip(self._table[::2], self._table[1::2], strict=True):
            if number != _NOTHING and since < latest:
                return int(number)
        return None
