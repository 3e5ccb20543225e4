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
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from queue import SimpleQueue
from typing import Generic, TypeVar, cast

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
) -> Iterator[tuple[Item, Result]]:
    """Yield items and results in order, from worker processes that run a little ahead.

    `work` maps lists of `at_once` items to their results.

    Raises UserError if a worker was killed.
    """
    left = iter(items)
    parts = iter(lambda: list(itertools.islice(left, at_once)), [])
    ahead: deque[tuple[list[Item], Future[list[Result]]]] = deque()
    processes: list[_Process[Item, Result]] = []
    free: SimpleQueue[_Process[Item, Result]] = SimpleQueue()

    def call(part: list[Item]) -> list[Result]:
        process = free.get()
        try:
            return process.call(part)
        finally:
            free.put(process)

    pool = ThreadPoolExecutor(workers)
    try:
        with defers_stops():
            for _ in range(workers):
                processes.append(_Process(work))
                free.put(processes[-1])
        ahead.extend((part, pool.submit(call, part)) for part in itertools.islice(parts, workers * _TASKS_AHEAD))
        while ahead:
            part, results = ahead.popleft()
            yield from zip(part, results.result(), strict=True)
            ahead.extend((part, pool.submit(call, part)) for part in itertools.islice(parts, 1))
    except _Killed:
        message = "a worker process was killed, usually because memory ran out; use fewer workers"
        raise UserError(Problem(message, "dataloader.workers", workers)) from None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.end()


class _Killed(Exception):
    """A worker process has ended."""


class _Process(Generic[Item, Result]):
    """A worker process that calls a function, and may be killed at any time.

    concurrent.futures' pool would wait forever for a result of which a killed worker has sent a part, and a process
    that exits at once would leak its semaphores; a pipe has neither fault.
    """

    def __init__(self, work: Callable[[list[Item]], list[Result]]):
        context = multiprocessing.get_context("spawn")
        self._connection, end = context.Pipe()
        self._process = context.Process(target=_serve, args=(work, end), daemon=True)
        self._process.start()
        end.close()

    def call(self, items: list[Item]) -> list[Result]:
        """Return the results of items. Raises what the function raises, and _Killed if the process has ended."""
        try:
            self._connection.send(items)
            result = self._connection.recv()
        except (EOFError, OSError):
            raise _Killed from None
        if isinstance(result, Exception):
            raise result
        return cast(list[Result], result)

    def end(self) -> None:
        """End the process now, whatever it waits for."""
        self._process.kill()
        self._process.join()


def _serve(work: Callable[[list[Item]], list[Result]], connection: Connection) -> None:
    follow_parent()
    while True:
        items = connection.recv()
        try:
            connection.send(work(items))
        except Exception as error:
            connection.send(error)


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
