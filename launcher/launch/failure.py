"""What the user is told when a rank fails."""

from __future__ import annotations

import signal
import socket
from collections.abc import Collection, Mapping
from pathlib import Path

import psutil
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from launcher.errors import EXIT_USER_ERROR, UserError, one_line
from launcher.rank.main import log_file

_LAST_LINES = 20


def first_failure(failures: Mapping[int, ProcessFailure], failed_first: Collection[int]) -> tuple[int, ProcessFailure]:
    """The rank whose failure is the others' cause, given the process ids that were seen to fail first.

    Of several: one that was killed, since it had no time to record anything; then the earliest recorded error.
    """

    def order(rank: int) -> tuple[bool, bool, float, int]:
        process = failures[rank]
        closed_by_elastic = process.exitcode == -signal.SIGTERM
        return closed_by_elastic, process.exitcode > 0, process.error_file_data.get("time", float("inf")), rank

    rank = min([rank for rank in failures if failures[rank].pid in failed_first] or failures, key=order)
    return rank, failures[rank]


def describe(rank: int, process: ProcessFailure, run_folder: Path) -> str:
    """Which rank failed and why, in lines for the terminal.

    Raises:
        UserError: that rank ended with one.
    """
    recorded = process.error_file_data
    if process.exitcode == EXIT_USER_ERROR and "problems" in recorded:
        raise UserError(*recorded["problems"])
    log = log_file(run_folder, rank)
    if "from_outside" in recorded:
        return f"error: rank {rank}: {recorded['from_outside']} (its whole log: {log})"
    if "time" in recorded:
        reason, text = recorded["message"]["message"], recorded["message"]["extraInfo"]["py_callstack"].rstrip()
        if "out of memory" in reason:
            text += "\nfewer images at a time need less memory: device_batch_size=N, in evaluation eval_batch_size=N"
    else:
        reason, text = _ending(process.exitcode), _last_lines(log)
    where = f"host {socket.gethostname()}, process {process.pid}, exit code {process.exitcode}"
    return f"error: rank {rank} failed: {reason} ({where})\n{text}\nits whole log: {log}"


def is_from_outside(process: ProcessFailure) -> bool:
    """Whether a rank ended because of something outside of the program, so that another attempt may go better."""
    return bool(process.exitcode < 0 or "from_outside" in process.error_file_data)


def describe_hang(
    failures: Mapping[int, ProcessFailure],
    hung: Mapping[int, str],
    stalls: Mapping[int, str],
    seconds: float,
    logs: Path,
) -> str:
    """That no rank made progress, what each was doing, and where the stacks are; `hung` and `stalls` by process id."""
    lines = [f"error: no rank has made progress for {seconds:g} s (launch.hang_timeout); all were ended"]
    for rank, process in sorted(failures.items()):
        stopped = hung.get(process.pid) == psutil.STATUS_STOPPED
        state = "was stopped (SIGSTOP)" if stopped else "was waiting; its stacks are in its log"
        lines.append(stalls.get(process.pid, f"rank {rank} {state}"))
    return "\n".join([*lines, f"logs: {logs}"])


def describe_lost_folder(run_folder: Path) -> str:
    """Say that the run folder is gone, and what to do where it was only moved."""
    return one_line(
        f"error: the run folder {run_folder} was deleted or moved while the run trained; all ranks were stopped; "
        "after a move, train resume NEW_PATH continues from its last checkpoint"
    )


def _ending(exit_code: int) -> str:
    if exit_code == -signal.SIGKILL:
        return "killed by SIGKILL; most often the machine ran out of memory: fewer dataloader.workers, smaller batch"
    return f"killed by {signal.Signals(-exit_code).name}" if exit_code < 0 else f"ended with exit code {exit_code}"


def _last_lines(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join(lines[-_LAST_LINES:])
