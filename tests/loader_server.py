"""Fork multiprocessing's server of loader workers from a process without threads, which saves its imports."""

import ctypes
import gc
import os
import pickle
import resource
import signal
import socket
import sys
from collections.abc import Sequence
from multiprocessing import forkserver, util
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1
_MAIN = "from multiprocessing.forkserver import main;"
_MOST_BYTES = 1 << 16


def prepare() -> None:
    """Fork a process that waits to become the server; later calls for a second one start it as usual."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    if not (waiting := os.fork()):
        ours.close()
        _wait(theirs, parent)
    theirs.close()
    start, left = util.spawnv_passfds, [waiting]

    def spawn(path: bytes, words: Sequence[Any], files: Sequence[int]) -> int:
        if not left or os.getpid() != parent or not str(words[-1]).startswith(_MAIN):
            return start(path, words, files)
        message = pickle.dumps((str(words[-1]), str(Path.cwd()), [*files], dict(os.environ), _inherited()))
        socket.send_fds(ours, [message], [*files])
        return left.pop()

    forkserver.util = SimpleNamespace(**{**vars(util), "spawnv_passfds": spawn})  # type: ignore[attr-defined]


def _inherited() -> tuple[set[int], tuple[int, int]]:
    """Return what a new process would have of this one: its cores and its limit of open files."""
    return os.sched_getaffinity(0), resource.getrlimit(resource.RLIMIT_NOFILE)


def _wait(theirs: socket.socket, parent: int) -> NoReturn:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # note: the working directory is that of a run's processes
    os.chdir("/")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    message, files, *_ = socket.recv_fds(theirs, _MOST_BYTES, 8)
    if not message or os.getppid() != parent:
        os._exit(0)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0)
    theirs.close()
    code, folder, numbers, environment, (cores, limit) = pickle.loads(message)
    # note: a file may have the number that another is to get
    copies = [file if file not in numbers else _other(file, numbers) for file in files]
    for file, number in zip(copies, numbers, strict=True):
        os.dup2(file, number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    os.sched_setaffinity(0, cores)
    resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    gc.enable()
    # note: multiprocessing imports it as its main module, and runpy warns about imported ones
    sys.modules.pop("launcher.rank.main", None)
    try:
        exec(code, {})
    finally:
        os._exit(0)


def _other(file: int, numbers: Sequence[int]) -> int:
    """Duplicate a file under a number that is not among these."""
    copy = os.dup(file)
    return copy if copy not in numbers else _other(copy, numbers)
