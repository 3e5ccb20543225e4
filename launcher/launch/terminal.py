"""Print rank 0's log on the terminal while the ranks run."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path

from launcher.records.progress import NewLines, TerminalView

_SECONDS = 0.2


class LogFollower:
    """Print new lines of a log file and poll the view in a thread, until it is closed.

    It prints no line of the log while `muted`: what a rank logs after a peer has failed would hide the cause.
    """

    def __init__(self, log: Path, view: TerminalView, muted: Callable[[], bool]):
        self._log, self._view, self._muted = NewLines(log), view, muted
        # note: lines wait for one poll, because the watch detects a failed peer after other ranks log its effects
        self._waiting: list[bytes] = []
        self._messages: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="terminal", daemon=True)
        self._thread.start()

    def print(self, line: str) -> None:
        """Print a line of the launcher; safe in a signal handler."""
        self._messages.put(line)

    def skip(self) -> None:
        """Skip the lines that the log has now; called after the ranks have ended and before muting ends."""
        self._messages.put(None)

    def close(self) -> None:
        """Print the remaining lines and close the view."""
        self._done.set()
        self._thread.join()
        self._poll()
        self._show([*self._waiting, self._log.rest] if self._log.rest else self._waiting)
        self._view.close()

    def _follow(self) -> None:
        while not self._done.wait(_SECONDS):
            self._poll()

    def _poll(self) -> None:
        while not self._messages.empty():
            if (line := self._messages.get()) is not None:
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
