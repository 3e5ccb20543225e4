"""`python -m launcher…` as a fork of a process that has imported it: a process as any other, there in no time.

`python -m tests.forked NAME` is that process, which all workers of pytest ask through a socket of that name: it
computes nothing and has no threads. What the command itself starts by `python -m`, the process that its ranks are
forks of and the runs of a grid, are forks of the command. `python -c` is one that has imported torch, and nothing of
this project.
"""

from __future__ import annotations

import atexit
import gc
import hashlib
import importlib
import os
import pickle
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import IO, Any, NoReturn

_IMPORTED = (
    *("launcher.cli.run", "launcher.cli.resume", "launcher.cli.curve", "launcher.launch.start"),
    *("launcher.launch.elastic", "launcher.launch.zygote", "launcher.training.begin", "launcher.training.worker"),
    *("launcher.data.worker_processes", "launcher.records.curve", "multiprocessing.sharedctypes"),
    *("PIL.JpegImagePlugin", "pytest", "tests.runs", "tests.trainers"),
)
_MOST_BYTES = 1 << 18
_SECONDS = 0.01
# How long the process waits for somebody to connect.
_LAST_SECONDS = 2


class Command:
    """What `subprocess.Popen` tells of a process, of `python -m MODULE WORDS` or `-c` in one that is forked."""

    def __init__(
        self,
        words: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        stdout: int | IO[str] = subprocess.PIPE,
        stderr: int | IO[str] = subprocess.PIPE,
        before: Sequence[Callable[[], object]] = (),
        stdin: int = subprocess.DEVNULL,
    ):
        """Start it in a folder; these functions, of modules, are called in it first."""
        self.returncode: int | None = None
        files, ends, self._readers = [], [], []
        for file in (stdin, stdout, stderr):
            if file == subprocess.DEVNULL:
                file = os.open(os.devnull, os.O_RDWR)
                ends.append(file)
            if file == subprocess.PIPE:
                end, file = os.pipe()
                ends.append(file)
                self._readers.append(_Reader(end))
            files.append(file if isinstance(file, int) else file.fileno())
        self.pid = _ask((tuple(words), str(folder), dict(environment), tuple(before)), files)
        for file in ends:
            os.close(file)
        for reader in self._readers:
            reader.start()

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = _ask(self.pid)
        return self.returncode

    def wait(self, timeout: float = 900) -> int:
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("train", timeout)
            time.sleep(_SECONDS)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float = 900) -> tuple[str, str]:
        """Wait for its end, and that of all that writes where it does; what it said on pipes."""
        end = time.monotonic() + timeout
        for reader in self._readers:
            reader.join(max(0.0, end - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired("train", timeout)
        self.wait(max(0.0, end - time.monotonic()))
        said = [reader.text for reader in self._readers]
        return said[0] if len(said) > 1 else "", said[-1] if said else ""


class Piped(Command):
    """`python -c CODE WORDS` that is asked and answers in bytes."""

    def __init__(self, command: Sequence[str], stderr: IO[Any], before: Sequence[Callable[[], object]] = (), **_: int):
        asked, self._ask = os.pipe()
        self._answer, answered = os.pipe()
        super().__init__(command[1:], Path.cwd(), os.environ, answered, stderr, before, asked)
        for end in (asked, answered):
            os.close(end)
        self.stdin, self.stdout = os.fdopen(self._ask, "wb"), os.fdopen(self._answer, "rb")

    def communicate(self, timeout: float = 900) -> tuple[str, str]:
        with suppress(BrokenPipeError):
            self.stdin.close()
        self.stdout.close()
        self.wait(timeout)
        return "", ""


def python(code: str, *words: str, folder: Path, environment: Mapping[str, str] = os.environ) -> str:
    """What `python -c CODE WORDS` prints, where nothing of this project has been imported.

    Raises:
        subprocess.CalledProcessError: it fails; `stderr` is what it said.
    """
    command = Command(["-c", code, *words], folder, environment)
    output, errors = command.communicate()
    if command.returncode:
        raise subprocess.CalledProcessError(command.returncode, "python", output, errors)
    return output


class _Reader(threading.Thread):
    """Reads a pipe to its end."""

    def __init__(self, end: int):
        super().__init__(daemon=True)
        self.text = ""
        self._end = end

    def run(self) -> None:
        with os.fdopen(self._end, encoding="utf-8") as pipe:
            self.text = pipe.read()


@cache
def _server() -> socket.socket:
    root, run = Path(__file__).parents[1], os.environ.get("PYTEST_XDIST_TESTRUNUID", os.getpid())
    name = hashlib.sha256(f"{root} {run}".encode()).hexdigest()
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    # note: what commands set before they import torch
    environment = {**os.environ, "PYTHONPATH": path, "OMP_WAIT_POLICY": "PASSIVE", "OPENBLAS_NUM_THREADS": "1"}
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if connection.connect_ex(_address(name)):
        server = subprocess.Popen([sys.executable, "-m", "tests.forked", name], env=environment)
        while connection.connect_ex(_address(name)):
            # note: one that finds another's there ends well
            assert not server.poll()
            time.sleep(_SECONDS)
    return connection


def _address(name: str) -> str:
    """Of Linux's own names of sockets, which are no files."""
    return f"\0{name}"


def _ask(question: Any, files: Sequence[int] = ()) -> Any:
    server = _server()
    socket.send_fds(server, [pickle.dumps(question)], files)
    return pickle.loads(server.recv(_MOST_BYTES))


def _serve(listener: socket.socket) -> None:
    """Answer until nobody is connected."""
    connections: list[socket.socket] = []
    while ready := select.select([listener, *connections], [], [], None if connections else _LAST_SECONDS)[0]:
        for one in ready:
            if one is listener:
                connections.append(listener.accept()[0])
            elif not _answer(one, [listener, *connections]):
                connections.remove(one)
                one.close()


def _answer(connection: socket.socket, sockets: Sequence[socket.socket]) -> bool:
    """Fork a process for a command; tell the exit code for a process id, None while it runs; False if none asks."""
    asked, files, *_ = socket.recv_fds(connection, _MOST_BYTES, 3)
    if not asked:
        return False
    question = pickle.loads(asked)
    if isinstance(question, int):
        process, status = os.waitpid(question, os.WNOHANG)
        connection.send(pickle.dumps(os.waitstatus_to_exitcode(status) if process else None))
    elif process := os.fork():
        connection.send(pickle.dumps(process))
        for file in files:
            os.close(file)
    else:
        for one in sockets:
            one.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        words, folder, environment, before = question
        for prepare in before:
            prepare()
        os.chdir(folder)
        _become(words, environment)
    return True


def _become(words: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Live on as `python -m MODULE WORDS` or `python -c CODE WORDS`, and end as that does."""
    os.environ.clear()
    os.environ.update(environment)
    sys.path[1:1] = [
        path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path not in ("", *sys.path)
    ]
    tempfile.tempdir = None
    gc.enable()
    for module in ("launcher.launch.zygote", "launcher.cli.curve"):
        importlib.import_module(module).subprocess = SimpleNamespace(Popen=_started)  # type: ignore[attr-defined]
    code = 1
    try:
        _run_code(*words[1:]) if words[0] == "-c" else _run_module(*words)
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
    # note: as an interpreter ends, whose rest is seconds where torch is imported
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(code)


def _run_module(name: str, *words: str) -> None:
    sys.argv = ["", *words]
    sys.modules.pop(name, None)
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _run_code(code: str, *words: str) -> None:
    sys.argv, sys.path[0] = ["-c", *words], ""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("launcher", "tests")]:
        del sys.modules[name]
    sys.modules["__main__"] = ModuleType("__main__")
    exec(code, vars(sys.modules["__main__"]))


def _started(words: Sequence[str], **given: Any) -> Any:
    """What the command starts, as a fork of it; where it has threads already, as it does that itself."""
    if threading.active_count() > 1:
        return subprocess.Popen(words, **given)
    return _Fork(words[words.index("-m") + 1 :], **given)


class _Fork:
    def __init__(
        self,
        words: Sequence[str],
        pass_fds: Sequence[int] = (),
        env: Mapping[str, str] | None = None,
        start_new_session: bool = False,
        preexec_fn: Any = None,
    ):
        sys.stdout.flush()
        self._returncode = 0
        self.pid = os.fork()
        if self.pid == 0:
            if start_new_session:
                os.setsid()
            for number in signal.valid_signals():
                if callable(signal.getsignal(number)):
                    signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            before = 3
            for file in (*sorted(pass_fds), 1 << 16):
                os.closerange(before, file)
                before = file + 1
            if preexec_fn:
                preexec_fn()
            _become(words, env or {**os.environ})

    def wait(self) -> int:
        # note: who stops a run may have waited for it too, as with Popen
        with suppress(ChildProcessError):
            self._returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _main(name: str) -> None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(_address(name))
    except OSError:
        return
    listener.listen()
    gc.disable()
    for module in _IMPORTED:
        importlib.import_module(module)
    importlib.import_module("launcher.config.validate").adapter().rebuild()
    with suppress(ModuleNotFoundError):
        # note: what FFCV's import takes, which itself starts a thread
        importlib.import_module("numba.typed")
    gc.freeze()
    _serve(listener)
    os._exit(0)


if __name__ == "__main__":
    _main(sys.argv[1])
