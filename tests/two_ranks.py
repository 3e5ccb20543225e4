"""A function on two ranks that meet over gloo, for what no single process can show."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable

import torch.distributed as dist
import torch.multiprocessing as mp


def on_two_ranks(function: Callable[..., None], *arguments: object) -> None:
    """Run `function(rank, *arguments)`, a function of a module, in two processes of one group."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank, (f"file://{folder}/meeting", function, arguments), nprocs=2)


def _rank(rank: int, meeting: str, function: Callable[..., None], arguments: tuple[object, ...]) -> None:
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    function(rank, *arguments)
    dist.destroy_process_group()
    # note: gloo's threads may still free tensors, and abort when they meet an interpreter that is shutting down
    os._exit(0)
