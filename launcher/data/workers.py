"""What loader workers are reading, and worker processes that exit with their parent, however it ends.

Imports no torch.
"""

import itertools
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from typing import Any, TypeVar

from launcher.errors import Problem, UserError
from launcher.stopping import defers_stops

_TASKS_AHEAD = 4
_READERS = 16
_SERVER = "launcher.data.fork_server"
_NOTHING = -1

# Called with (description, done, total) to show progress.
Report = Callable[[str, int, int], None]
Item = TypeVar("Item")
Result = TypeVar("Result")
# What a worker process does.
_work: Callable[[list[Any]], list[Any]]


def quiet(what: str, done: int, total: int) -> None:
    """A `Report` that prints nothing."""


class Reading:
    """Track in shared memory which image each reader is reading and since when."""

    def __init__(self, readers: int):
        # note: per reader the image's index and the start in seconds of the system-wide monotonic clock
        self._table = multiprocessing.get_context("forkserver").RawArray("d", [_NOTHING, 0.0] * readers)

    @contextmanager
    def image(self, number: int, reader: int = 0) -> Iterator[None]:
        """Record that a reader is reading an image."""
        self._table[2 * reader + 1] = time.monotonic()
        self._table[2 * reader] = number
        try:
            yield
        finally:
            self._table[2 * reader] = _NOTHING

    def stalled(self, seconds: float) -> int | None:
        """Return the index of an image whose read has taken more than `seconds`."""
        latest = time.monotonic() - seconds
        for number, since in zip(self._table[::2], self._table[1::2], strict=True):
            if number != _NOTHING and since < latest:
                return int(number)
        return None


def in_workers(
    work: Callable[[list[Item]], list[Result]], items: Iterable[Item], at_once: int, workers: int
) -> Generator[tuple[Item, Result]]:
    """Yield items and results in order, from worker processes that run a little ahead.

    `work` maps lists of `at_once` items to their results, which must be small: concurrent.futures waits forever for a
    result of which a killed worker has sent a part.

    Raises UserError if a worker was killed.
    """
    left = iter(items)
    parts = iter(lambda: [*itertools.islice(left, at_once)], [])
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _begin, (work,))
    ahead: deque[tuple[list[Item], Future[list[Result]]]] = deque()
    try:
        while True:
            for part in itertools.islice(parts, workers * _TASKS_AHEAD - len(ahead)):
                with defers_stops():
                    ahead.append((part, pool.submit(_do, part)))
            if not ahead:
                return
            part, future = ahead.popleft()
            yield from zip(part, future.result(), strict=True)
    except BrokenProcessPool:
        message = "a worker process was killed, usually because memory ran out; use fewer workers"
        raise UserError(Problem(message, "dataloader.workers", workers)) from None
    finally:
        # note: a read of a network may take minutes
        for process in [*(pool._processes or {}).values()]:
            process.kill()
        # note: free the semaphores now; a process that exits at once leaks them
        pool.shutdown(wait=True, cancel_futures=True)


def _begin(work: Callable[[list[Any]], list[Any]]) -> None:
    """In a worker process: keep what it does, so that it is sent once."""
    global _work
    _work = work
    follow_parent()


def _do(items: list[Any]) -> list[Any]:
    return _work(items)


def in_threads(
    work: Callable[[Item], Result], items: Sequence[Item], at_once: int = 1, report: Report = quiet, what: str = ""
) -> Iterator[Result]:
    """Yield the results of items in order, from threads that take `at_once` items.

    A single reader of a network disk or bucket would mostly wait.
    """
    starts = range(0, len(items), at_once)
    pool = ThreadPoolExecutor(_READERS)
    try:
        parts = pool.map(lambda start: [*map(work, items[start : start + at_once])], starts)
        for start, results in zip(starts, parts, strict=True):
            yield from results
            report(what, min(start + at_once, len(items)), len(items))
    finally:
        # note: after a stop signal a read of a network may take minutes
        pool.shutdown(wait=False, cancel_futures=True)


def clean_processes() -> BaseContext:
    """Return a context that forks workers from a process without threads.

    A rank runs threads (gradients, collectives, pinning); its fork could inherit a held lock and hang.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([_SERVER])
    return context


def start_server() -> None:
    """Start the process of `clean_processes` that forks workers; its imports take a second or more."""
    clean_processes()
    forkserver.ensure_running()


def follow_parent() -> None:
    """In a worker: ignore stop signals, which the parent handles, and exit when the parent exits."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
