"""Rank 0's log on the terminal, while the ranks run."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path

from launcher.records.progress import NewLines, TerminalView

_SECONDS = 0.2


class LogFollower:
    """A thread that prints new lines of a log file and polls the view, until it is closed.

    Nothing more of the log is printed once `muted`: what a rank says after a peer has failed would hide the cause.
    """

    def __init__(self, log: Path, view: TerminalView, muted: Callable[[], bool]):
        self._log, self._view, self._muted = NewLines(log), view, muted
        # note: lines wait for one look, since a peer's failure is noticed a moment after its consequences are written
        self._waiting: list[bytes] = []
        self._said: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="terminal", daemon=True)
        self._thread.start()

    def say(self, line: str) -> None:
        """Print a line of the launcher's own; may be called by a signal handler."""
        self._said.put(line)

    def forget(self) -> None:
        """Never print what is in the log by now; for ranks that have ended, and before muting ends."""
        self._said.put(None)

    def close(self) -> None:
        """Show what is left and end the view."""
        self._done.set()
        self._thread.join()
        self._look()
        self._show([*self._waiting, self._log.rest] if self._log.rest else self._waiting)
        self._view.close()

    def _follow(self) -> None:
        while not self._done.wait(_SECONDS):
            self._look()

    def _look(self) -> None:
        while not self._said.empty():
            if (line := self._said.get()) is not None:
                self._view.print(line)
            else:
                self._log.read()
                self._waiting, self._log.rest = [], b""
        lines, self._waiting = self._waiting, self._log.read()
        self._show(lines)
        self._view.poll()

    def _show(self, lines: list[bytes]) -> None:
        if not self._muted():
            for line in lines:
                self._view.print(line.decode(errors="replace"))
