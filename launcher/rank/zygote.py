"""A process that imports what ranks need, once, and forks them: `python -m launcher.rank.zygote PIPE LAUNCHER MODULE`.

It computes nothing and has no threads, so a fork of it is as good as a process that has imported the same.
"""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from launcher.rank.main import die_with, live
from launcher.rank.stop import hold

_THREADS = "OMP_NUM_THREADS"


def serve(connection: Connection) -> None:
    """Fork a rank for a target's words and an environment; tell the exit code for a process id, None while it runs."""
    zygote = os.getpid()
    while True:
        try:
            asked = connection.recv()
        except EOFError:
            return
        if isinstance(asked, int):
            process, status = os.waitpid(asked, os.WNOHANG)
            connection.send(os.waitstatus_to_exitcode(status) if process else None)
        elif process := os.fork():
            with suppress(OSError):
                # note: a signal to the rank's group may come before the rank has made it
                os.setpgid(process, process)
            connection.send(process)
        else:
            connection.close()
            os.setpgid(0, 0)
            _become_rank(zygote, *asked)


def _become_rank(zygote: int, words: tuple[str, ...], environment: dict[str, str]) -> NoReturn:
    is_shared_out = _THREADS not in os.environ
    os.environ.clear()
    os.environ.update(environment)
    gc.enable()
    torch = sys.modules.get("torch")
    # note: read when torch was imported
    if torch and is_shared_out and torch.get_num_threads() != int(environment[_THREADS]):
        torch.set_num_threads(int(environment[_THREADS]))
    target, run_folder, launcher, scratch = words
    live(target, Path(run_folder), int(launcher), Path(scratch), parent=zygote)


if __name__ == "__main__":
    die_with(int(sys.argv[2]))
    hold()
    gc.disable()
    # note: a rank that fails to import it tells so
    with suppress(Exception):
        import_module(sys.argv[3])
    # note: ranks share what is never looked at again
    gc.freeze()
    serve(Connection(int(sys.argv[1])))
    os._exit(0)
