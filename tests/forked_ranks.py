"""Start the ranks of a command as forks of it before it has threads, which saves seconds of imports per rank."""

import ctypes
import os
import pickle
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

MOST_BYTES = 1 << 18
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
# Those of a terminal and of Slurm, which reach every process.
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
_RANK = "launcher.rank.main"

Become = Callable[[Sequence[str], Mapping[str, str]], None]


def serve(become: Become) -> None:
    """Fork a server of ranks from this process, their later parent; `become` continues as a module and its words."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler import SubprocessHandler

    launcher, (ours, theirs) = os.getpid(), socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # note: a rank is the child of a child of the server, which exits, so that it becomes a child of this process
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    if os.fork():
        theirs.close()
        SubprocessHandler._popen = lambda _, words, environment: _Rank(ours, words, environment)
        return
    ours.close()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _STOP_SIGNALS}
    # note: the working directory is that of a run's processes
    os.chdir("/")
    while request := theirs.recv(MOST_BYTES):
        if not (child := os.fork()):
            for number, handler in before.items():
                signal.signal(number, handler)
            _start(theirs, launcher, become, *pickle.loads(request))
        os.waitpid(child, 0)
    os._exit(0)


def _start(
    connection: socket.socket,
    launcher: int,
    become: Become,
    folder: str,
    words: Sequence[str],
    environment: Mapping[str, str],
) -> None:
    """Fork a rank and exit; continue as the rank in the fork, which sends its process id as a child of the launcher."""
    if os.fork():
        os._exit(0)
    while os.getppid() != launcher:
        time.sleep(0.001)
    connection.send(pickle.dumps(os.getpid()))
    connection.close()
    os.setsid()
    os.chdir(folder)
    import torch

    # note: torch has read the variable of the launcher
    torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    become(words[words.index(_RANK) :], environment)


class _Rank(subprocess.Popen[bytes]):
    """A child process that this class has not started."""

    def __init__(self, server: socket.socket, words: Sequence[str], environment: Mapping[str, str]):
        server.send(pickle.dumps((str(Path.cwd()), words, dict(environment))))
        self.args: Any = words
        self.pid, self.returncode = pickle.loads(server.recv(MOST_BYTES)), None
        self.stdin = self.stdout = self.stderr = None
        self._child_created, self._waitpid_lock = True, threading.Lock()
