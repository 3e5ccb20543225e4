"""One process a GPU through torch elastic, in this process; one rank's failure ends all at once."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import psutil
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from launcher.errors import EXIT_USER_ERROR, UserError
from launcher.launch.exit_codes import DONE, FAILED, INTERRUPTED, TERMINATED
from launcher.launch.rank import error_file, log_file
from launcher.launch.terminal import LogFollower, TerminalView

WORKER = "launcher.training.worker:work"
# note: survivors of a failed rank may be blocked in a collective and deaf to SIGTERM
_SECONDS_TO_DIE = 5
_LAST_LINES = 20


@dataclass
class _Request:
    """The signal that asked this run to stop, once one has."""

    number: signal.Signals | None = None


def launch(run_folder: Path, processes: int, view: TerminalView, target: str = WORKER) -> int:
    """Run the target on so many ranks of this machine; returns the exit code.

    Raises:
        UserError: a rank ended with one.
    """
    for rank in range(processes):
        error_file(run_folder, rank).unlink(missing_ok=True)
    _set_threads(processes)
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    follower = LogFollower(log_file(run_folder, 0), view)
    failure: ChildFailedError | None = None
    try:
        with _stop_requests() as request, tempfile.TemporaryDirectory(prefix="train-") as scratch:
            arguments = ("-u", "-m", "launcher.launch.rank", target, str(run_folder))
            elastic_launch(_config(processes, scratch), sys.executable)(*arguments)
    except ChildFailedError as error:
        failure = error
    except SignalException as error:
        return 128 + int(error.sigval)
    finally:
        follower.close()
    if failure is not None:
        return _report(failure, run_folder, processes)
    return {None: DONE, signal.SIGINT: INTERRUPTED}.get(request.number, TERMINATED)


def _config(processes: int, scratch: str) -> LaunchConfig:
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id="train",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=scratch),
        # note: stop requests are ours to pass on; only SIGQUIT makes the agent itself drop everything
        signals_to_handle="SIGQUIT",
        shutdown_timeout=_SECONDS_TO_DIE,
    )


def _set_threads(processes: int) -> None:
    """Share the cores among the ranks, unless the user has said otherwise."""
    cores = len(os.sched_getaffinity(0))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // processes)))


@contextmanager
def _stop_requests() -> Iterator[_Request]:
    """Pass the first stop signal on to the ranks, which save and end by themselves; a second one ends them at once."""
    request = _Request()

    def pass_on(number: int, frame: FrameType | None) -> None:
        if request.number is not None:
            raise SignalException("stopped at once", sigval=signal.Signals(number))
        request.number = signal.Signals(number)
        for child in psutil.Process().children():
            try:
                child.send_signal(signal.SIGTERM)
            except psutil.NoSuchProcess:
                continue

    asking = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, pass_on) for number in asking}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _report(failure: ChildFailedError, run_folder: Path, processes: int) -> int:
    """Say on the terminal which rank failed first and why.

    Raises:
        UserError: that rank ended with one.
    """
    rank, process = _first(failure, run_folder, processes)
    path = error_file(run_folder, rank)
    what = json.loads(path.read_text()) if path.exists() else {}
    if process.exitcode == EXIT_USER_ERROR and "user_error" in what:
        raise UserError(*what["user_error"])
    log = log_file(run_folder, rank)
    print(f"error: rank {rank} failed: {what.get('error') or _ending(process.exitcode)}", file=sys.stderr)
    text = what.get("traceback") or "\n".join(_tail(log))
    print(text, file=sys.stderr)
    print(f"its whole log: {log}", file=sys.stderr)
    return FAILED


def _first(failure: ChildFailedError, run_folder: Path, processes: int) -> tuple[int, ProcessFailure]:
    """The rank that failed first: one that was killed drags the others down, else the earliest recorded error."""
    for rank, process in failure.failures.items():
        if process.exitcode < 0:
            return rank, process
    times = {}
    for rank in failure.failures:
        if (path := error_file(run_folder, rank)).exists():
            times[rank] = json.loads(path.read_text())["time"]
    rank = min(times, key=times.__getitem__) if times else min(failure.failures)
    return rank, failure.failures[rank]


def _ending(exit_code: int) -> str:
    if exit_code == -signal.SIGKILL:
        return "killed by SIGKILL; most often the machine ran out of memory (fewer dataloader.workers, smaller batch)"
    return f"killed by {signal.Signals(-exit_code).name}" if exit_code < 0 else f"exit code {exit_code}"


def _tail(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines()[-_LAST_LINES:] if path.exists() else []
