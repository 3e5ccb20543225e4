"""A function on several ranks that meet over gloo, for what no single process can show."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable

import torch.distributed as dist
import torch.multiprocessing as mp

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["launcher.data.worker_processes", "pytest", "tests.runs", "tests.trainers"])


def in_a_fork(function: Callable[..., None], *arguments: object) -> int | None:
    """Run a function of a module in a process of its own; its exit code."""
    process = _FORKS.Process(target=function, args=arguments)
    process.start()
    process.join()
    return process.exitcode


def on_two_ranks(function: Callable[..., None], *arguments: object) -> None:
    """Run `function(rank, *arguments)`, a function of a module, in two processes of one group."""
    on_ranks(2, function, *arguments)


def on_ranks(count: int, function: Callable[..., None], *arguments: object) -> None:
    """The same in so many processes, forks of one that has imported what takes seconds."""
    with tempfile.TemporaryDirectory() as folder:
        given = (count, f"file://{folder}/meeting", function, arguments)
        mp.start_processes(_rank, given, nprocs=count, start_method="forkserver")


def _rank(rank: int, count: int, meeting: str, function: Callable[..., None], arguments: tuple[object, ...]) -> None:
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=count)
    function(rank, *arguments)
    dist.destroy_process_group()
    # note: gloo's threads may still free tensors, and abort when they meet an interpreter that is shutting down
    os._exit(0)
