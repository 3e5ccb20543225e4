"""Run a rank: `python -m launcher.rank.main MODULE:FUNCTION RUN_FOLDER LAUNCHER_PID SCRATCH HANG_TIMEOUT`.

It writes all output to logs/rank-N.log of the run folder, and an error that ends it to elastic's error file.
"""

import ctypes
import importlib
import io
import json
import os
import re
import resource
import shutil
import signal
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TextIO, cast

import psutil

from launcher.compute.probe import SHARING
from launcher.errors import (
    DONE,
    EXIT_USER_ERROR,
    FAILED,
    MORE_PROCESSES,
    MachineError,
    Printable,
    UserError,
    is_out_of_processes,
    one_line,
)
from launcher.files import atomic, disk
from launcher.files.log_lines import of_a_rank, stamp
from launcher.rank.signs import (
    CORES,
    HEARTBEAT,
    STOP,
    STOP_SIGNALS,
    STOPPED,
    beat_file,
    done_file,
    name_after,
    remove_semaphores,
)

_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
_PR_SET_PDEATHSIG = 1
_GUARD_SECONDS = 0.5


def main(target: str, run_folder: Path, scratch: Path) -> int:
    """Run the target in this process, record its end for the launcher, and return the exit code.

    The target returns False if a stop signal to any rank has ended it before its end.
    """
    try:
        _redirect_output(log_file(run_folder, os.environ["RANK"]))
        module, _, function = target.partition(":")
        finished = getattr(importlib.import_module(module), function)(run_folder)
        done_file(scratch, os.getpid()).write_text(STOPPED if finished is False else "")
    except UserError as error:
        _record(error)
        return EXIT_USER_ERROR
    except Exception as error:
        # note: first, so that it has an earlier time than the errors of peers that lose this rank's connection
        _record(error)
        # note: a log that cannot be written goes to the terminal
        if not isinstance(error, disk.DiskError) and not (isinstance(error, OSError) and disk.is_known(error)):
            traceback.print_exc()
        return FAILED
    return DONE


def live(target: str, run_folder: Path, launcher: int, scratch: Path, hang_timeout: float | None) -> NoReturn:
    """Run a rank from start to end; it ends when the launcher, a process id, does."""
    STOP.install()
    die_with(launcher)
    bind_cores()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        # note: each batch of a loader worker is an open file
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        guard_group(launcher, scratch)
        name_after(scratch)
        HEARTBEAT.start(beat_file(scratch, os.getpid()), hang_timeout)
        STOP.end_waits()
    except (OSError, RuntimeError) as error:
        _record(error)
        os._exit(FAILED)
    code = main(target, run_folder, scratch)
    # note: loader threads and NCCL may block an ordinary exit; all files are written
    os._exit(code)


def log_file(run_folder: Path, rank: str | int) -> Path:
    return run_folder / "logs" / f"rank-{rank}.log"


def bind_cores() -> None:
    """Use only the cores that the launcher chose for this rank, if any; its threads and loader workers inherit them."""
    if by_rank := json.loads(os.environ.get(CORES) or "[]"):
        own = by_rank[int(os.environ["LOCAL_RANK"])]
        # note: a container may have lost cores since
        with suppress(OSError):
            os.sched_setaffinity(0, own)
            os.environ[SHARING] = str(by_rank.count(own))


def die_with(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Make the kernel send this process a signal when its parent dies, for whatever reason; Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os.kill(os.getpid(), number)


def guard_group(launcher: int, scratch: Path) -> None:
    """Fork a guard process that kills this process group after this process, its leader, has ended.

    Otherwise loader workers and their fork server keep each other alive. If the launcher has also ended, the guard
    removes the scratch folder and semaphores in its place. Call it before any thread starts.
    """
    leader, starter = os.getpid(), psutil.Process(launcher)
    if os.getpgrp() != leader or os.fork():
        return
    # note: elastic sends SIGTERM to the whole group
    for number in (*STOP_SIGNALS, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    while os.getppid() == leader:
        time.sleep(_GUARD_SECONDS)
    os.setpgid(0, 0)
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
    if not is_alive(starter):
        remove_semaphores(scratch)
        shutil.rmtree(scratch, ignore_errors=True)
    os._exit(0)


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process is running: not a zombie, and not another process with its id."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _record(error: BaseException) -> None:
    """Write elastic's error file, with a finer time and the messages for the user."""
    for_user: dict[str, object] = {}
    if is_out_of_processes(f"{type(error).__name__}: {error}") and getattr(error, "filename", None) is None:
        error = MachineError(f"no further process or thread can start ({error}); {MORE_PROCESSES}")
    if isinstance(error, OSError) and disk.is_known(error):
        error = disk.DiskError.of(error, "a file of the run")
    if isinstance(error, UserError):
        for_user = {"problems": [str(problem) for problem in error.problems]}
    elif isinstance(error, MachineError):
        for_user = {"from_outside": one_line(str(error)), "repeats": not getattr(error, "may_pass", True)}
    elif lost := re.search(r"Connection (?:closed|reset) by peer", str(error)):
        for_user = {"from_outside": f"another rank has ended, or its node is lost ({lost[0]})"}
    now = time.time()
    extra = {"py_callstack": traceback.format_exc(), "timestamp": str(int(now))}
    message = {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}
    try:
        atomic.write_text(Path(os.environ[_ERROR_FILE]), json.dumps({"message": message, "time": now, **for_user}))
    except OSError:
        print(f"error: {error}", flush=True)


class _Log(io.FileIO):
    """Write to a log, or to the terminal if the disk is full: a failed log line must not end a run."""

    def __init__(self, log: int, terminal: int):
        super().__init__(log, "w", closefd=False)
        self._terminal = terminal

    def write(self, data: Any) -> int:
        with suppress(OSError):
            if super().write(data) == len(data):
                return len(data)
        lines = bytes(data).decode("utf-8", "backslashreplace").splitlines(keepends=True)
        with suppress(OSError):
            os.write(self._terminal, "".join(of_a_rank(line) or "" for line in lines).encode())
        return len(data)


class _Stamped(Printable):
    """Start each line with its time."""

    _is_new = True

    def write(self, text: str) -> int:
        lines = text.splitlines(keepends=True)
        starts = [self._is_new, *(True for _ in lines[1:])]
        self._is_new = text.endswith("\n") if text else self._is_new
        return super().write("".join(stamp() * is_new + line for is_new, line in zip(starts, lines, strict=False)))


def _redirect_output(path: Path) -> None:
    # note: a run folder that was deleted must not come back
    path.parent.mkdir(exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    terminal = os.dup(2)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    log = io.TextIOWrapper(_Log(1, terminal), encoding="utf-8", errors="backslashreplace", write_through=True)
    sys.stdout = sys.stderr = cast(TextIO, _Stamped(log))


if __name__ == "__main__":
    live(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), json.loads(sys.argv[5]))
