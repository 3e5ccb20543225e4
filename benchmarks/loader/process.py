"""A contender in its own process: `python -m benchmarks.loader.process NAME FOLDER CONNECTION`."""

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from benchmarks.loader.contenders import OPENERS, PEERS
from benchmarks.loader.files import Files


@dataclass(frozen=True)
class Contender:
    """A contender's process: the heights and widths [N, 2] of its stored images, and their bytes."""

    name: str
    sizes: np.ndarray
    stored: int
    connection: Connection

    def run(self, boxes: np.ndarray, size: int) -> float:
        """Return the processor seconds of one pass over all images."""
        self.connection.send((boxes, size))
        seconds: float = self.connection.recv()
        return seconds


@contextmanager
def started(name: str, folder: Path, files: Files, peers: Path | None = None) -> Iterator[Contender | None]:
    """Start a contender for the block; None if it is not installed. Modules in `peers` take precedence."""
    ours, theirs = Pipe()
    environment = dict(os.environ)
    if peers is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(peers), environment.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "benchmarks.loader.process", name, str(folder), str(theirs.fileno())]
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
    theirs.close()
    try:
        ours.send_bytes(pickle.dumps(files))
        facts: tuple[str, np.ndarray, int] | None = ours.recv()
        yield None if facts is None else Contender(facts[0], facts[1], facts[2], ours)
    finally:
        ours.close()
        process.wait()


def serve(name: str, folder: Path, connection: Connection) -> None:
    """Open a contender and time its passes until the connection closes."""
    import torch

    torch.set_num_threads(1)
    files: Files = pickle.loads(connection.recv_bytes())
    try:
        opened = {**OPENERS, **PEERS}[name](folder, files)
    except ModuleNotFoundError:
        connection.send(None)
        return
    connection.send((opened.name, opened.sizes, opened.stored))
    while True:
        try:
            boxes, size = connection.recv()
        except EOFError:
            return
        start = time.process_time()
        opened.run(boxes, size)
        connection.send(time.process_time() - start)


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]), Connection(int(sys.argv[3])))
