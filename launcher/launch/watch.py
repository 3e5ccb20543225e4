"""Find the rank that failed first, and why: elastic lists a failed rank like those it killed.

Elastic waits 30 s for the peers of a failed rank, which block in a collective; the watch kills them sooner.
"""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR
from typing import Self

import psutil
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from launcher.errors import EXIT_USER_ERROR, MORE_PROCESSES, UserError, is_out_of_memory, is_out_of_processes
from launcher.files.log_lines import of_a_rank
from launcher.launch.hang import Hang, HangWatch
from launcher.rank.main import is_alive, log_file
from launcher.rank.signs import STOPPED, WRITE_STACKS, done_file

_INTERVAL = 0.05  # seconds
_SECONDS_TO_END = 2.0
_SECONDS_WITHOUT_FOLDER = 1.0
_LAST_LINES = 20


@dataclass(frozen=True)
class Failure:
    """A failed attempt: the message, and whether the cause is outside the program, so that a restart may succeed.

    `repeats`: no restart can succeed, as on a full disk. `hangs`: ranks made no progress.
    """

    message: str
    from_outside: bool
    exit_code: int | None = None
    repeats: bool = False
    hangs: bool = False


class RankWatch:
    """Watch the ranks, whose process ids `ids` returns once they run; at the end kill them and their children.

    A rank that succeeds or was stopped leaves a file in the scratch folder. If one ends without it, the others are
    killed soon after. If the run folder is missing for a second, all ranks are killed, because they can write no
    records. If some hang, by `hangs`, all write their stacks before.
    """

    def __init__(
        self, ids: Callable[[], Collection[int]], scratch: Path, run_folder: Path, hangs: HangWatch | None = None
    ):
        # process ids of all ranks, and of those that failed first
        self.ranks: frozenset[int] = frozenset()
        self.failed_first: frozenset[int] = frozenset()
        self.hang: Hang | None = None
        self._hangs = hangs or HangWatch(scratch, None)
        self._ids, self._scratch = ids, scratch
        self._run_folder, self._folder_seen = run_folder, time.monotonic()
        self._sent: signal.Signals | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()
        # note: elastic may detect a failed rank before the watch
        self._find_ranks()
        self.failed_first = self.failed_first or self._failed_by_now()
        self.kill()

    @property
    def has_running(self) -> bool:
        """Whether a rank has started and not ended."""
        self._find_ranks()
        return not all(map(_has_ended, self.ranks))

    @property
    def was_stopped(self) -> bool:
        """Whether a rank ended after a stop signal to any rank, of this node or another."""
        files = [done_file(self._scratch, rank) for rank in self.ranks]
        return any(file.exists() and file.read_text() == STOPPED for file in files)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to each rank, including ranks that start later, but not to their loader workers."""
        self._find_ranks()
        self._sent = number
        self._signal(self.ranks, number)

    def kill(self) -> None:
        """Kill every rank and its children."""
        self.send(signal.SIGKILL)
        for rank in self.ranks:
            # note: elastic makes each rank the leader of a process group, and loader workers may outlive it
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(rank, signal.SIGKILL)

    def _watch(self) -> None:
        while not self._closed.wait(_INTERVAL):
            self._find_ranks()
            self.failed_first = self._failed_by_now() or self._hanging()
            if self.failed_first:
                self._closed.wait(_SECONDS_TO_END)
            if self.failed_first or self._folder_is_gone():
                self.kill()
                return

    def _hanging(self) -> frozenset[int]:
        """Return the ranks that hang, after a signal to all to write their stacks."""
        self.hang = self._hangs.hanging([rank for rank in self.ranks if not _has_ended(rank)])
        if self.hang is None:
            return frozenset()
        self._signal(self.ranks, WRITE_STACKS)
        return frozenset(self.hang.processes)

    def _find_ranks(self) -> None:
        new = frozenset(self._ids()) - self.ranks
        self.ranks |= new
        if self._sent is not None:
            self._signal(new, self._sent)

    def _signal(self, ranks: Collection[int], number: signal.Signals) -> None:
        for rank in ranks:
            if not _has_ended(rank):
                with suppress(ProcessLookupError):
                    os.kill(rank, number)

    def _folder_is_gone(self) -> bool:
        # note: a network file system may briefly not show an existing folder
        if not is_gone(self._run_folder):
            self._folder_seen = time.monotonic()
        return time.monotonic() - self._folder_seen > _SECONDS_WITHOUT_FOLDER

    def _failed_by_now(self) -> frozenset[int]:
        ended = filter(_has_ended, self.ranks)
        return frozenset(rank for rank in ended if not done_file(self._scratch, rank).exists())


def is_gone(folder: Path) -> bool:
    """Return whether a folder was deleted or moved; False if that cannot be read."""
    try:
        return not S_ISDIR(folder.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False


def _has_ended(rank: int) -> bool:
    """Return whether a child process has ended, even if elastic has already waited for it."""
    # note: macOS has os.waitid only from Python 3.13 on
    try:
        process = psutil.Process(rank)
        return process.ppid() != os.getpid() or not is_alive(process)
    except psutil.NoSuchProcess:
        return True


def first_failure(failures: Mapping[int, ProcessFailure], failed_first: Collection[int]) -> tuple[int, ProcessFailure]:
    """Find the rank whose failure caused the others, by the process ids that failed first.

    If there are several, a rank that was killed comes first, because it recorded no error, then the earliest
    recorded error.
    """

    def order(rank: int) -> tuple[bool, float, int]:
        process = failures[rank]
        closed_by_elastic = process.exitcode == -signal.SIGTERM
        return closed_by_elastic, process.error_file_data.get("time", 0.0), rank

    rank = min([rank for rank in failures if failures[rank].pid in failed_first] or failures, key=order)
    return rank, failures[rank]


def describe(rank: int, process: ProcessFailure, run_folder: Path) -> Failure:
    """Describe which rank failed and why.

    Raises UserError if that rank raised one.
    """
    recorded, code = process.error_file_data, process.exitcode
    if code == EXIT_USER_ERROR and "problems" in recorded:
        raise UserError(*recorded["problems"])
    log = log_file(run_folder, rank)
    if "from_outside" in recorded:
        message = f"error: rank {rank}: {recorded['from_outside']} (full log: {log})"
        return Failure(message, from_outside=True, exit_code=code, repeats=recorded.get("repeats", False))
    if "time" in recorded:
        reason, text = recorded["message"]["message"], recorded["message"]["extraInfo"]["py_callstack"].rstrip()
        if is_out_of_memory(reason):
            text = "to use less memory, set device_batch_size=N for training or eval_batch_size=N for evaluation"
    else:
        reason, text = _ending(code), log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        lines = [line for line in map(of_a_rank, text.splitlines()) if line is not None]
        text = "\n".join(lines[-_LAST_LINES:])
        if code > 0 and is_out_of_processes(text):
            message = f"error: rank {rank}: no further process or thread can start; {MORE_PROCESSES} (full log: {log})"
            return Failure(message, from_outside=True, exit_code=code)
    where = f"host {socket.gethostname()}, process {process.pid}, exit code {code}"
    message = f"error: rank {rank} failed: {reason} ({where})\n{text}\nfull log: {log}"
    return Failure(message, from_outside=code < 0, exit_code=code)


def _ending(exit_code: int) -> str:
    if exit_code == -signal.SIGKILL:
        return "killed by SIGKILL, probably out of memory; set dataloader.workers or batch_size lower"
    return f"killed by {signal.Signals(-exit_code).name}" if exit_code < 0 else f"ended with exit code {exit_code}"
