"""How many work on loading, and worker processes that end with the process they work for, however that ended.

Imports no torch.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.context import BaseContext
from typing import TypeVar

from launcher.config.schema import FFCVLoader, TorchvisionLoader
from launcher.errors import Problem, UserError
from launcher.probe import rank_cores

_TASKS_AHEAD = 4
MOST_PROCESSES = 8  # of a rank, as torchvision's loader workers
_WORKER = "launcher.data.worker_processes"

Item = TypeVar("Item")
Result = TypeVar("Result")


def worker_count(loader: TorchvisionLoader | FFCVLoader, local_world_size: int) -> int:
    """Loader workers of one rank: so many as the config says, or its share of the cores."""
    if loader.workers != "auto":
        return loader.workers
    cores = rank_cores(local_world_size)
    # note: threads share one memory, processes do not
    return cores if isinstance(loader, FFCVLoader) else min(MOST_PROCESSES, cores)


def in_workers(
    work: Callable[[list[Item]], list[Result]], items: Iterable[Item], at_once: int, workers: int
) -> Iterator[tuple[Item, Result]]:
    """Yield each item and its result, in order, from worker processes that work a little ahead.

    `work` gets lists of `at_once` items and returns their results.

    Raises:
        UserError: a worker was killed.
    """
    left = iter(items)
    parts = iter(lambda: list(itertools.islice(left, at_once)), [])
    ahead: deque[tuple[list[Item], Future[list[Result]]]] = deque()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=follow_parent) as pool:
        try:
            ahead.extend((part, pool.submit(work, part)) for part in itertools.islice(parts, workers * _TASKS_AHEAD))
            while ahead:
                part, results = ahead.popleft()
                yield from zip(part, results.result(), strict=True)
                ahead.extend((part, pool.submit(work, part)) for part in itertools.islice(parts, 1))
        except BrokenProcessPool:
            message = "a worker process was killed, usually because memory ran out; use fewer workers"
            raise UserError(Problem(message, "dataloader.workers", workers)) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def clean_processes() -> BaseContext:
    """Starts workers from a process that has no threads.

    A rank runs threads of its own (gradients, collectives, pinning); a fork of it may inherit a lock that is held, and
    hang for ever.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([_WORKER])
    return context


def follow_parent() -> None:
    """Called in a worker: leave stop signals to the parent, which still needs it, and end when that has ended."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
