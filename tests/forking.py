"""Processes of `python -m MODULE` that start at once: forks of a server that has imported all that takes seconds.

They have their own process number, folder, environment and signals, and their ranks and loader workers are forks too;
only the imports are shared. `python -m tests.forking FILE_NUMBER` is the server.
"""

from __future__ import annotations

import ctypes
import importlib
import inspect
import json
import multiprocessing.forkserver as forkserver
import multiprocessing.resource_tracker as tracker
import multiprocessing.util as processes
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

_IMPORTED = ("launcher.cli.main", "launcher.launch.start", "launcher.launch.elastic", "launcher.records.curve")
_IMPORTED += ("launcher.training.worker", "launcher.data.worker_processes", "timm", "tensorboard.summary")
_RANK = "launcher.rank.main"
_PR_SET_NAME = 15
_MOST = 1 << 20  # bytes of a request


@cache
def _server() -> socket.socket:
    """The connection to this process's server, which ends with it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST)
    command = [sys.executable, "-m", "tests.forking", str(theirs.fileno())]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    subprocess.Popen(command, cwd=Path(__file__).parents[1], env=environment, pass_fds=[theirs.fileno()])
    theirs.close()
    return ours


class Forked(subprocess.Popen[str]):
    """As Popen, for `[sys.executable, "-m", MODULE, *words]`: the server's child, of which it tells the end."""

    def _execute_child(self, *given: Any) -> None:
        of = inspect.signature(subprocess.Popen._execute_child).bind(self, *given).arguments  # type: ignore[attr-defined]
        assert list(of["args"][:2]) == [sys.executable, "-m"]
        given_ends = (of["p2cread"], of["c2pwrite"], of["errwrite"])
        ends = [usual if end == -1 else end for usual, end in enumerate(given_ends)]
        request = [[str(word) for word in of["args"][2:]], str(of["cwd"] or Path.cwd()), dict(of["env"] or os.environ)]
        self._told, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(_server(), [json.dumps(request).encode()], [*ends, theirs.fileno()])
        self.pid = self._number()
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(of[name] for name in pipes))  # type: ignore[attr-defined]

    def _number(self) -> int:
        said = self._told.recv(4, socket.MSG_WAITALL)
        assert said, "the server of tests/forking.py has ended"
        return int(struct.unpack("i", said)[0])

    def _try_wait(self, flags: int) -> tuple[int, int]:
        if flags == os.WNOHANG and not select.select([self._told], [], [], 0)[0]:
            return 0, 0
        return self.pid, self._number()

    def _internal_poll(self, _deadstate: int | None = None) -> int | None:
        if self.returncode is None:
            process, status = self._try_wait(os.WNOHANG)
            if process == self.pid:
                self._handle_exitstatus(status)  # type: ignore[attr-defined]
        return self.returncode


def serve(requests: socket.socket) -> None:
    """Fork for each request, and tell the process number and later how it ended; returns in each child's end."""
    children: dict[int, socket.socket] = {}
    wake, woken = socket.socketpair()
    woken.setblocking(False)
    signal.set_wakeup_fd(woken.fileno())
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    while True:
        ready, _, _ = select.select([requests, wake], [], [])
        if wake in ready:
            wake.recv(4096)
            _tell_ends(children)
        if requests not in ready:
            continue
        message, ends, _, _ = socket.recv_fds(requests, _MOST, 4)
        if not message:
            return
        words, folder, environment = json.loads(message)
        if (process := os.fork()) == 0:
            # note: their files are closed below; they must not be closed again
            for end in (requests, wake, woken, *children.values()):
                end.detach()
            os.chdir(folder)
            _become(words, environment, ends[:3])
        told = socket.socket(fileno=ends[3])
        told.send(struct.pack("i", process))
        children[process] = told
        for end in ends[:3]:
            os.close(end)


def _tell_ends(children: dict[int, socket.socket]) -> None:
    while children:
        process, status = os.waitpid(-1, os.WNOHANG)
        if not process:
            return
        with children.pop(process) as told:
            try:
                told.send(struct.pack("i", status))
            except BrokenPipeError:
                continue


def _become(words: Sequence[str], environment: Mapping[str, str], ends: Sequence[int]) -> None:
    """Run `python -m WORDS` in this fork, in what exec would have left of it; does not return."""
    _forget(ends)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False, errors="backslashreplace")  # noqa: SIM115
    sys.stderr.reconfigure(write_through=True)
    module, sys.argv = words[0], list(words)
    if module == _RANK:
        _name(f"rank-{environment['RANK']}")
    # note: run as another module than the one that is imported, as `python -m` does
    sys.modules.pop(module, None)
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit()


def _forget(ends: Sequence[int], keep: Sequence[int] = ()) -> None:
    """Drop signal handlers, files and what multiprocessing has started."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # note: a duplicate first, since one end may have the number at which another is wanted
    for target, end in enumerate([os.dup(end) for end in ends]):
        os.dup2(end, target)
    kept = [2, *sorted(keep), os.sysconf("SC_OPEN_MAX")]
    for low, high in pairwise(kept):
        os.closerange(low + 1, high)
    processes._finalizer_registry.clear()
    tracker._resource_tracker.__init__()  # type: ignore[misc]
    forkserver._forkserver.__init__()  # type: ignore[misc]


def _name(name: str) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode())


class _Rank(subprocess.Popen[str]):
    """As elastic starts ranks; the launcher's own child, which ends it when the launcher ends."""

    def _execute_child(self, *given: Any) -> None:
        of = inspect.signature(subprocess.Popen._execute_child).bind(self, *given).arguments  # type: ignore[attr-defined]
        _, *words = of["args"]
        self.pid = os.fork()
        if self.pid == 0:
            _end_with(_begin_rank, words, of["env"])
        self._child_created = True


def _begin_rank(words: list[str], environment: dict[str, str]) -> None:
    from launcher.rank.heartbeat import HEARTBEAT

    os.setsid()
    start = HEARTBEAT.start

    def start_after_loaders(scratch: Path) -> None:
        # note: forked while there are no threads; a loader asks for the same modules, and finds it running
        forkserver.set_forkserver_preload(["launcher.data.worker_processes"])
        forkserver.ensure_running()
        start(scratch)

    HEARTBEAT.start = start_after_loaders  # type: ignore[method-assign]
    _become([word for word in words if word not in ("-u", "-m")], environment, [0, 1, 2])


def _spawn_by_forking(path: bytes, arguments: list[str], keep: Sequence[int]) -> int:
    """In place of multiprocessing's way to start the process that forks loader workers."""
    if "multiprocessing.forkserver" not in str(arguments[-1]):
        return int(_spawn(path, arguments, keep))
    if (process := os.fork()) == 0:
        _end_with(_begin_forkserver, arguments[-1], keep)
    return process


def _begin_forkserver(code: str, keep: Sequence[int]) -> None:
    _forget([0, 1, 2], keep)
    _name("forkserver")
    exec(code, {})


def _end_with(function: Any, *arguments: Any) -> NoReturn:
    """Call a function in a fork of a process whose own ways out are not to be taken."""
    code = 1
    try:
        function(*arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


_spawn = processes.spawnv_passfds

if __name__ == "__main__":
    for name in _IMPORTED:
        importlib.import_module(name)
    import torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler as elastic

    elastic.Popen = _Rank  # type: ignore[attr-defined,misc,assignment]
    processes.spawnv_passfds = _spawn_by_forking
    serve(socket.socket(fileno=int(sys.argv[1])))
