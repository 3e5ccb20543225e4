"""A function on several ranks that meet over gloo, for what no single process can show.

`python -m tests.two_ranks FOLDER RANK` is one of them.
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.forking import Forked

_TASK = "task.pickle"


def on_two_ranks(function: Callable[..., None], *arguments: object) -> None:
    """Run `function(rank, *arguments)`, a function of a module, in two processes of one group."""
    on_ranks(2, function, *arguments)


def on_ranks(count: int, function: Callable[..., None], *arguments: object) -> None:
    """The same in so many processes; none outlives another's failure."""
    with tempfile.TemporaryDirectory() as folder:
        task = pickle.dumps(sys.path) + pickle.dumps((count, function, arguments))
        (Path(folder) / _TASK).write_bytes(task)
        ranks = [Forked([sys.executable, "-m", "tests.two_ranks", folder, str(rank)]) for rank in range(count)]
        try:
            while None in [rank.poll() for rank in ranks] and not any(rank.returncode for rank in ranks):
                time.sleep(0.01)
            assert [rank.returncode for rank in ranks] == [0] * count
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()


def _run(folder: Path, rank: int) -> None:
    import torch.distributed as dist

    with (folder / _TASK).open("rb") as file:
        # note: where the function's module is found, which is needed to read the function
        sys.path = pickle.load(file)
        count, function, arguments = pickle.load(file)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=count)
    function(rank, *arguments)
    dist.destroy_process_group()


if __name__ == "__main__":
    _run(Path(sys.argv[1]), int(sys.argv[2]))
    sys.stdout.flush()
    # note: gloo's threads may still free tensors, and abort when they meet an interpreter that is shutting down
    os._exit(0)
