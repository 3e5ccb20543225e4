"""`python -m tests.fork_server NAME`: fork a process per command, on requests through a socket of that name.

All workers of pytest share it. It computes nothing and has no threads. The ranks of a command are forks of it too; it
starts other processes as usual.
"""

import atexit
import gc
import importlib
import inspect
import os
import pickle
import runpy
import select
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import ModuleType
from typing import NoReturn

from tests import forked_ranks, loader_server
from tests.forked_ranks import MOST_BYTES

_IMPORTED = (
    *("launcher.cli.run", "launcher.cli.resume", "launcher_lab.cli.curve", "launcher.launch.start"),
    *("launcher.launch.elastic", "launcher.training.worker", "launcher.config.hydra_files"),
    *("launcher.data.worker_processes", "launcher.records.learning_curve", "multiprocessing.sharedctypes"),
    *("PIL.JpegImagePlugin", "pytest", "tests.runs", "tests.trainers"),
)
_STARTING_RANKS = ("launcher", "launch_driver")
# Seconds to wait for a connection.
_LAST_SECONDS = 2


def address(name: str) -> str:
    """Return the address of an abstract Linux socket."""
    return f"\0{name}"


def _serve(listener: socket.socket) -> None:
    """Serve requests until there are no connections."""
    connections: list[socket.socket] = []
    while ready := select.select([listener, *connections], [], [], None if connections else _LAST_SECONDS)[0]:
        for one in ready:
            if one is listener:
                connections.append(listener.accept()[0])
            elif not _reply(one, [listener, *connections]):
                connections.remove(one)
                one.close()


def _reply(connection: socket.socket, sockets: Sequence[socket.socket]) -> bool:
    """Fork a process for a command, or send the exit code of a process id, None while it runs; False at the end."""
    request, files, *_ = socket.recv_fds(connection, MOST_BYTES, 3)
    if not request:
        return False
    message = pickle.loads(request)
    if isinstance(message, int):
        process, status = os.waitpid(message, os.WNOHANG)
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
        words, folder, environment, before = message
        for prepare in before:
            prepare()
        os.chdir(folder)
        if words[0] in _STARTING_RANKS:
            forked_ranks.serve(become)
        become(words, environment)
    return True


def become(words: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Continue as `python -m MODULE WORDS` or `python -c CODE WORDS`, and exit like it."""
    os.environ.clear()
    os.environ.update(environment)
    sys.path[1:1] = [
        path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path not in ("", *sys.path)
    ]
    tempfile.tempdir = None
    if words[0] != "-c":
        loader_server.prepare()
    gc.enable()
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
    # note: as at the exit of an interpreter, without the seconds that torch needs
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(code)


def _run_module(name: str, *words: str) -> None:
    sys.argv = ["", *words]
    if "." in name:
        # note: runpy warns about imported modules, but of a package it runs __main__, which is not imported
        sys.modules.pop(name, None)
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _run_code(code: str, *words: str) -> None:
    sys.argv, sys.path[0] = ["-c", *words], ""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("launcher", "launcher_lab", "tests")]:
        del sys.modules[name]
    sys.modules["__main__"] = ModuleType("__main__")
    exec(code, vars(sys.modules["__main__"]))


def _compose() -> None:
    """Compose a config, whose files, types and keys the forks then know, and forget what a fork's packages may add."""
    from launcher import plugins
    from launcher.config import code, compose, keys
    from tests import kept_compositions
    from tests.runs import SMALL

    # note: a test of failing calls counts them
    if "LD_PRELOAD" not in os.environ:
        kept_compositions.keep()
    compose.compose(SMALL)
    keys.all_keys()
    for known in (plugins.points, plugins.registered, plugins.packages, code.installed):
        known.cache_clear()


def _stack() -> list[inspect.FrameInfo]:
    """Return what inspect.stack returns, without the lines of source."""
    frames = [frame for frame, _ in traceback.walk_stack(sys._getframe(1))]
    return [inspect.FrameInfo(f, f.f_code.co_filename, f.f_lineno, f.f_code.co_name, None, None) for f in frames]


def _main(name: str) -> None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(address(name))
    except OSError:
        return
    listener.listen()
    gc.disable()
    for module in _IMPORTED:
        importlib.import_module(module)
    _compose()
    importlib.import_module("tests.forked").fork_probes()
    # note: elastic reads only the names of functions, and the search for their source is slow
    inspect.stack = _stack  # type: ignore[assignment]
    gc.freeze()
    _serve(listener)
    os._exit(0)


if __name__ == "__main__":
    _main(sys.argv[1])
