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
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from queue import SimpleQueue
from typing import Any, TypeVar, cast

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
Order = TypeVar("Order")
Final = TypeVar("Final")


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
    parts = _parts(items, at_once)
    with _started([work], workers) as processes, _threads(workers) as pool:
        call = _on_any(processes)
        ahead = deque((part, pool.submit(call, part)) for part in itertools.islice(parts, workers * _TASKS_AHEAD))
        while ahead:
            part, future = ahead.popleft()
            yield from zip(part, future.result()[1], strict=True)
            ahead.extend((part, pool.submit(call, part)) for part in itertools.islice(parts, 1))


def in_two_steps(
    work: Callable[[list[Item]], list[Result]],
    settle: Callable[[list[Item], list[Result]], list[Order]],
    finish: Callable[[list[Order]], list[Final]],
    items: Iterable[Item],
    at_once: int,
    workers: int,
) -> Generator[tuple[Item, Final]]:
    """Yield items and their final results in order; the process that did the `work` on items also does `finish`.

    What is large so stays there. `settle` is called here, in the order of items, and returns what `finish` gets.

    Raises UserError if a worker was killed.
    """
    parts = _parts(items, at_once)
    with _started([work, finish], workers) as processes, _threads(workers) as pool, _threads(workers) as finishers:
        call = _on_any(processes)
        ahead = deque((part, pool.submit(call, part)) for part in itertools.islice(parts, workers * _TASKS_AHEAD))
        finishing: deque[tuple[list[Item], Future[list[Final]]]] = deque()
        while ahead or finishing:
            first: list[Future[Any]] = [queue[0][1] for queue in (ahead, finishing) if queue]
            wait(first, return_when=FIRST_COMPLETED)
            if finishing and finishing[0][1].done():
                part, final = finishing.popleft()
                yield from zip(part, final.result(), strict=True)
                ahead.extend((part, pool.submit(call, part)) for part in itertools.islice(parts, 1))
            if ahead and ahead[0][1].done():
                part, future = ahead.popleft()
                process, results = future.result()
                finishing.append((part, finishers.submit(process.call, settle(part, results), 1)))


def _parts(items: Iterable[Item], at_once: int) -> Iterator[list[Item]]:
    left = iter(items)
    return iter(lambda: list(itertools.islice(left, at_once)), [])


@contextmanager
def _started(functions: Sequence[Callable[[list[Any]], list[Any]]], workers: int) -> Iterator[list["_Process"]]:
    """Start worker processes that call these functions, and end them after the block."""
    processes: list[_Process] = []
    try:
        with defers_stops():
            processes.extend(_Process(functions) for _ in range(workers))
        yield processes
    except _Killed:
        message = "a worker process was killed, usually because memory ran out; use fewer workers"
        raise UserError(Problem(message, "dataloader.workers", workers)) from None
    finally:
        for process in processes:
            process.end()


@contextmanager
def _threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """Start threads that wait for worker processes, and cancel after the block what they have not started."""
    pool = ThreadPoolExecutor(count)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _on_any(processes: Sequence["_Process"]) -> Callable[[list[Any]], tuple["_Process", list[Any]]]:
    """Return what calls the first function of a free process with items, for threads; it returns the process too."""
    free: SimpleQueue[_Process] = SimpleQueue()
    for one in processes:
        free.put(one)

    def call(items: list[Any]) -> tuple[_Process, list[Any]]:
        process = free.get()
        try:
            return process, process.call(items)
        finally:
            free.put(process)

    return call


class _Killed(Exception):
    """A worker process has ended."""


class _Process:
    """A worker process that calls functions, each in a separate thread, and may be killed at any time.

    concurrent.futures' pool would wait forever for a result of which a killed worker has sent a part, and a process
    that exits at once would leak its semaphores; a pipe has neither fault.
    """

    def __init__(self, functions: Sequence[Callable[[list[Any]], list[Any]]]):
        context = multiprocessing.get_context("spawn")
        connections, ends = zip(*(context.Pipe() for _ in functions), strict=True)
        self._connections = [(connection, threading.Lock()) for connection in connections]
        self._process = context.Process(target=_serve, args=(functions, ends), daemon=True)
        self._process.start()
        for end in ends:
            end.close()

    def call(self, items: list[Any], function: int = 0) -> list[Any]:
        """Return a function's results of items. Raises what it raises, and _Killed if the process has ended."""
        connection, lock = self._connections[function]
        try:
            with lock:
                connection.send(items)
                result = connection.recv()
        except (EOFError, OSError):
            raise _Killed from None
        if isinstance(result, Exception):
            raise result
        return cast(list[Any], result)

    def end(self) -> None:
        """End the process now, whatever it waits for."""
        self._process.kill()
        self._process.join()


def _serve(functions: Sequence[Callable[[list[Any]], list[Any]]], connections: Sequence[Connection]) -> None:
    follow_parent()
    for pair in zip(functions[1:], connections[1:], strict=True):
        threading.Thread(target=_answer, args=pair, daemon=True).start()
    _answer(functions[0], connections[0])


def _answer(function: Callable[[list[Any]], list[Any]], connection: Connection) -> None:
    while True:
        items = connection.recv()
        try:
            connection.send(function(items))
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
