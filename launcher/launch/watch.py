"""Which rank failed first or hangs, and why: elastic lists a failed rank and those it killed alike.

Elastic gives the peers of a failed rank 30 s, which they spend blocked in a collective; the watch kills them sooner.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from launcher.errors import EXIT_USER_ERROR, UserError
from launcher.rank.main import log_file
from launcher.rank.signs import DUMP_SIGNAL, SECONDS_TO_START, sign_file, stalled_ranks

_INTERVAL = 0.05  # seconds
_SECONDS_TO_END = 2.0
_SECONDS_TO_DUMP = 1.0
_SECONDS_WITHOUT_FOLDER = 1.0
_LAST_LINES = 20


@dataclass(frozen=True)
class Failure:
    """An attempt that failed: lines for the terminal, and whether another attempt may go better."""

    message: str
    from_outside: bool
    exit_code: int | None = None


@dataclass
class _Life:
    """When a rank last showed life, on the launcher's clock: file times may jump."""

    stamp: int | None = None
    has_worked: bool = False
    seen: float = field(default_factory=time.monotonic)

    def note(self, stamp: int, now: float) -> None:
        if stamp != self.stamp:
            self.has_worked = self.stamp is not None
            self.stamp, self.seen = stamp, now

    def is_over(self, now: float, timeout: float) -> bool:
        return now - self.seen > (timeout if self.has_worked else max(timeout, SECONDS_TO_START))


class RankWatch:
    """Watches the ranks, whose process ids `ids` returns once they run; on leaving none, nor any of theirs, is left.

    A rank that ends well leaves a file in the scratch folder; without one it was killed, or has failed. `hang_timeout`
    is in seconds without any sign of life, None waits for ever. Without its run folder a run can record nothing: the
    ranks are killed once that has been missing for a second.
    """

    def __init__(
        self,
        ids: Callable[[], Collection[int]],
        scratch: Path,
        run_folder: Path,
        hang_timeout: float | None = None,
        say: Callable[[str], None] = lambda line: None,
    ):
        self.failed_first: frozenset[int] = frozenset()  # process ids
        self.hung: dict[int, bool] = {}  # process ids, and whether each was stopped by a signal
        self.stalls: dict[int, str] = {}  # process ids and a line on the file that each reads for too long
        self._say = say
        self._ids, self._scratch, self._hang_timeout = ids, scratch, hang_timeout
        self._run_folder, self._folder_seen = run_folder, time.monotonic()
        self._ranks: dict[int, _Life] = {}  # by process id
        self._sent: signal.Signals | None = None
        self._deadline = float("inf")
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def __enter__(self) -> RankWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()
        # note: elastic may be quicker than the watch to see that a rank has failed
        self._find_ranks()
        self.failed_first = self.failed_first or self._failed_by_now()
        self.kill()

    @property
    def started(self) -> bool:
        return bool(self._ranks)

    def has_failure(self) -> bool:
        return bool(self.failed_first)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to each rank, also to those that start later, not to their loader workers."""
        self._find_ranks()
        self._sent = number
        self._signal(list(self._ranks), number)

    def kill(self) -> None:
        """Kill every rank and what it has started."""
        self.send(signal.SIGKILL)
        for rank in list(self._ranks):
            # note: elastic makes each rank the leader of its own group, which loader workers join and outlive
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(rank, signal.SIGKILL)

    def explain(self, failures: Mapping[int, ProcessFailure]) -> Failure:
        """Describe why an attempt failed, by elastic's list of its ranks.

        Raises:
            UserError: the rank that failed first ended with one.
        """
        if not self.hung:
            rank, process = first_failure(failures, self.failed_first)
            return describe(rank, process, self._run_folder)
        lines = [f"error: no rank has made progress for {self._hang_timeout:g} s (launch.hang_timeout); all were ended"]
        for rank, process in sorted(failures.items()):
            stopped = self.hung.get(process.pid)
            state = "was stopped (SIGSTOP)" if stopped else "was waiting; its stacks are in its log"
            lines.append(self.stalls.get(process.pid, f"rank {rank} {state}"))
        return Failure("\n".join([*lines, f"logs: {self._run_folder / 'logs'}"]), from_outside=True)

    def _watch(self) -> None:
        while not self._closed.wait(_INTERVAL):
            self._find_ranks()
            if self._folder_is_gone():
                self.kill()
                return
            if not self.failed_first:
                self._report_stalls()
                self.failed_first = self._failed_by_now()
                self._deadline = time.monotonic() + _SECONDS_TO_END
                if not self.failed_first and self._all_hang():
                    self._end_hung()
                    return
            elif time.monotonic() > self._deadline:
                self.kill()
                return

    def _find_ranks(self) -> None:
        for rank in set(self._ids()) - self._ranks.keys():
            self._ranks[rank] = _Life()
            if self._sent is not None:
                self._signal([rank], self._sent)

    def _signal(self, ranks: Collection[int], number: signal.Signals) -> None:
        for rank in ranks:
            if not _is(rank, os.WEXITED):
                with suppress(ProcessLookupError):
                    os.kill(rank, number)

    def _folder_is_gone(self) -> bool:
        # note: for a moment a network file system may not show a folder that is there
        if self._run_folder.is_dir():
            self._folder_seen = time.monotonic()
        return time.monotonic() - self._folder_seen > _SECONDS_WITHOUT_FOLDER

    def _failed_by_now(self) -> frozenset[int]:
        ended = [rank for rank in list(self._ranks) if _is(rank, os.WEXITED)]
        return frozenset(rank for rank in ended if not sign_file(self._scratch, "done", rank).exists())

    def _report_stalls(self) -> None:
        stalls = stalled_ranks(self._scratch)
        for line in set(stalls.values()) - set(self.stalls.values()):
            self._say(f"warning: {line}")
        self.stalls = stalls

    def _all_hang(self) -> bool:
        """Whether every rank that runs has been silent too long; a rank that hangs makes the others wait for it."""
        running = [rank for rank in list(self._ranks) if not _is(rank, os.WEXITED)]
        if self._hang_timeout is None or not running:
            return False
        now = time.monotonic()
        for rank in running:
            with suppress(FileNotFoundError):
                self._ranks[rank].note(sign_file(self._scratch, "beat", rank).stat().st_mtime_ns, now)
        return all(self._ranks[rank].is_over(now, self._hang_timeout) for rank in running)

    def _end_hung(self) -> None:
        """Have each rank write its stacks to its log, then kill them all."""
        self.hung = {rank: _is(rank, os.WSTOPPED) for rank in self._ranks if not _is(rank, os.WEXITED)}
        self.failed_first = frozenset(self.hung)
        self._signal(self.hung, DUMP_SIGNAL)
        time.sleep(_SECONDS_TO_DUMP)
        self.kill()


def _is(rank: int, state: int) -> bool:
    """Whether a child process is in a state of `os.waitid`; one that somebody has waited for has ended."""
    try:
        return os.waitid(os.P_PID, rank, state | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return state == os.WEXITED


def first_failure(failures: Mapping[int, ProcessFailure], failed_first: Collection[int]) -> tuple[int, ProcessFailure]:
    """Find the rank whose failure caused the others', given the process ids that were seen to fail first.

    Of several: one that was killed, since it had no time to record anything; then the earliest recorded error.
    """

    def order(rank: int) -> tuple[bool, bool, float, int]:
        process = failures[rank]
        closed_by_elastic = process.exitcode == -signal.SIGTERM
        return closed_by_elastic, process.exitcode > 0, process.error_file_data.get("time", float("inf")), rank

    rank = min([rank for rank in failures if failures[rank].pid in failed_first] or failures, key=order)
    return rank, failures[rank]


def describe(rank: int, process: ProcessFailure, run_folder: Path) -> Failure:
    """Describe which rank failed and why.

    Raises:
        UserError: that rank ended with one.
    """
    recorded, code = process.error_file_data, process.exitcode
    if code == EXIT_USER_ERROR and "problems" in recorded:
        raise UserError(*recorded["problems"])
    log = log_file(run_folder, rank)
    if "from_outside" in recorded:
        message = f"error: rank {rank}: {recorded['from_outside']} (its whole log: {log})"
        return Failure(message, from_outside=True, exit_code=code)
    if "time" in recorded:
        reason, text = recorded["message"]["message"], recorded["message"]["extraInfo"]["py_callstack"].rstrip()
        if "out of memory" in reason:
            text += "\nfewer images at a time need less memory: device_batch_size=N, in evaluation eval_batch_size=N"
    else:
        reason = _ending(code)
        text = "\n".join(log.read_text(errors="replace").splitlines()[-_LAST_LINES:]) if log.exists() else ""
    where = f"host {socket.gethostname()}, process {process.pid}, exit code {code}"
    message = f"error: rank {rank} failed: {reason} ({where})\n{text}\nits whole log: {log}"
    return Failure(message, from_outside=code < 0, exit_code=code)


def _ending(exit_code: int) -> str:
    if exit_code == -signal.SIGKILL:
        return "killed by SIGKILL; most often the machine ran out of memory: fewer dataloader.workers, smaller batch"
    return f"killed by {signal.Signals(-exit_code).name}" if exit_code < 0 else f"ended with exit code {exit_code}"
