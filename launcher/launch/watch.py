"""Which rank failed first, and an end to its peers: elastic lists a failed rank and the ones it killed alike.

Elastic gives the peers of a failed rank 30 s, which they spend blocked in a collective; the watch kills them sooner.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil

from launcher.launch.rank import done_file, told_failed

_INTERVAL = 0.05  # seconds
_SECONDS_TO_END = 2.0


class RankWatch:
    """Watches the ranks, the child processes that elastic starts; on leaving none of them, nor of theirs, is left.

    The ranks tell how they end in the scratch folder; one that has told nothing was killed.
    """

    def __init__(self, processes: int, scratch: Path):
        self.failed_first: frozenset[int] = frozenset()  # process ids
        self._processes = processes
        self._scratch = scratch
        self._ranks: set[psutil.Process] = set()
        self._not_ranks = frozenset(psutil.Process().children())
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
        self.kill()

    def has_failure(self) -> bool:
        return bool(self.failed_first)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to each rank, also to those that start later, not to their loader workers."""
        self._sent = number
        self._find_ranks()
        for rank in list(self._ranks):
            with suppress(psutil.NoSuchProcess):
                rank.send_signal(number)

    def kill(self) -> None:
        """Kill every rank and what it has started."""
        self.send(signal.SIGKILL)
        for rank in list(self._ranks):
            # note: elastic makes each rank the leader of its own group, which loader workers join and outlive
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(rank.pid, signal.SIGKILL)

    def _watch(self) -> None:
        while not self._closed.wait(_INTERVAL):
            if len(self._ranks) < self._processes:
                self._find_ranks()
            if not self.failed_first:
                # note: elastic may reap a rank that fails at once before the watch has seen it
                ended = {rank.pid for rank in list(self._ranks) if self._ended_badly(rank)}
                self.failed_first = frozenset(told_failed(self._scratch) | ended)
                self._deadline = time.monotonic() + _SECONDS_TO_END
            elif time.monotonic() > self._deadline:
                self.kill()
                return

    def _find_ranks(self) -> None:
        # note: one that has ended already counts too, and shows neither command nor environment any more
        for child in set(psutil.Process().children()) - self._not_ranks - self._ranks:
            self._ranks.add(child)
            if self._sent is not None:
                with suppress(psutil.NoSuchProcess):
                    child.send_signal(self._sent)

    def _ended_badly(self, rank: psutil.Process) -> bool:
        try:
            if rank.is_running() and rank.status() != psutil.STATUS_ZOMBIE:
                return False
        except psutil.NoSuchProcess:
            pass
        return not done_file(self._scratch, rank.pid).exists()
