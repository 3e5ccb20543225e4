"""Run a function on several ranks that are connected by gloo."""

import os
import pickle
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

from tests.forked import Command


def in_a_fork(function: Callable[..., None], *arguments: object, code: int = 0) -> None:
    """Run a function of a module in another process, and check its exit code."""
    with tempfile.TemporaryDirectory() as folder:
        process = _fork(Path(folder) / "call", function, *arguments)
        _, errors = process.communicate()
    assert process.returncode == code, errors


def on_two_ranks(function: Callable[..., None], *arguments: object) -> None:
    """Run `function(rank, *arguments)`, a function of a module, in two processes of one group."""
    on_ranks(2, function, *arguments)


def on_ranks(count: int, function: Callable[..., None], *arguments: object) -> None:
    """Run it in `count` processes, which are forks of a process with all slow imports."""
    with tempfile.TemporaryDirectory() as folder:
        shared = (count, f"file://{folder}/rendezvous", function, arguments)
        ranks = [_fork(Path(folder) / f"call-{rank}", _rank, rank, *shared) for rank in range(count)]
        codes: list[int | None] = [None]
        try:
            while None in codes and not any(codes):
                time.sleep(0.02)
                codes = [rank.poll() for rank in ranks]
        finally:
            # note: the other ranks wait for a failed one
            for rank in ranks:
                rank.kill()
        errors_of = [rank.communicate()[1] for rank in ranks]
    for code, errors in zip(codes, errors_of, strict=True):
        assert not code, errors


def _fork(call: Path, function: Callable[..., None], *arguments: object) -> Command:
    call.write_bytes(pickle.dumps(sys.path) + pickle.dumps((function, arguments)))
    return Command(["tests.two_ranks", str(call)], Path.cwd(), os.environ)


def _rank(rank: int, count: int, rendezvous: str, function: Callable[..., None], arguments: tuple[object, ...]) -> None:
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=count)
    function(rank, *arguments)
    dist.destroy_process_group()
    # note: gloo's threads may still free tensors, and abort if the interpreter shuts down
    os._exit(0)


if __name__ == "__main__":
    with Path(sys.argv[1]).open("rb") as file:
        sys.path[:] = pickle.load(file)
        function, arguments = pickle.load(file)
    function(*arguments)
