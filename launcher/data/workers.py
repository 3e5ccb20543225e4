"""Number of loader workers, what they are reading, and worker processes that exit with their parent, however it ends.

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
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.context import BaseContext
from typing import TypeVar

from launcher.config.schema import FFCVLoader, TorchvisionLoader
from launcher.errors import Problem, UserError
from launcher.probe import rank_cores

_TASKS_AHEAD = 4
_READERS = 16
MOST_PROCESSES = 8  # of a rank, as torchvision's loader workers
_WORKER = "launcher.data.worker_processes"
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


def worker_count(loader: TorchvisionLoader | FFCVLoader, local_world_size: int) -> int:
    """Return the loader workers of one rank: as configured, or its part of the cores."""
    if loader.workers != "auto":
        return loader.workers
    cores = rank_cores(local_world_size)
    # note: threads share one memory, processes do not
    return cores if isinstance(loader, FFCVLoader) else min(MOST_PROCESSES, cores)


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
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=follow_parent)
    try:
        ahead.extend((part, pool.submit(work, part)) for part in itertools.islice(parts, workers * _TASKS_AHEAD))
        while ahead:
            part, results = ahead.popleft()
            yield from zip(part, results.result(), strict=True)
            ahead.extend((part, pool.submit(work, part)) for part in itertools.islice(parts, 1))
        pool.shutdown()
    except BrokenProcessPool:
        message = "a worker process was killed, usually because memory ran out; use fewer workers"
        raise UserError(Problem(message, "dataloader.workers", workers)) from None
    finally:
        # note: as in `in_threads`
        pool.shutdown(wait=False, cancel_futures=True)


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
    context.set_forkserver_preload([_WORKER])
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
