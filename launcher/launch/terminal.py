"""What the terminal shows while the ranks run: rank 0's log, and a view of the run's progress."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TextIO

_SECONDS = 0.2


class TerminalView(Protocol):
    """Shows a run's progress; `print` puts a line above it."""

    def poll(self) -> None: ...

    def print(self, line: str) -> None: ...

    def close(self) -> None: ...


class PlainView:
    """Prints to a file, or to standard output, and shows no progress."""

    def __init__(self, file: TextIO | None = None):
        self._file = file or sys.stdout

    def poll(self) -> None: ...

    def print(self, line: str) -> None:
        print(line, file=self._file, flush=True)

    def close(self) -> None: ...


class LogFollower:
    """A thread that prints new lines of a log file and polls the view, until it is closed.

    Nothing more of the log is printed once `muted`: what a rank says after a peer has failed would hide the cause.
    """

    def __init__(self, log: Path, view: TerminalView, muted: Callable[[], bool]):
        self._log, self._view, self._muted = log, view, muted
        self._position = log.stat().st_size if log.exists() else 0
        self._rest = b""
        # note: lines wait for one look, since a peer's failure is noticed a moment after its consequences are written
        self._waiting: list[bytes] = []
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._done = threading.Event()
        self._looking = threading.Lock()
        self._thread = threading.Thread(target=self._follow, name="terminal", daemon=True)
        self._thread.start()

    def say(self, line: str) -> None:
        """Print a line of the launcher's own; may be called by a signal handler."""
        self._said.put(line)

    def forget(self) -> None:
        """Never print what is in the log by now; for ranks that have ended, and before muting ends."""
        with self._looking:
            self._new_lines()
            self._waiting, self._rest = [], b""

    def close(self) -> None:
        """Show what is left and end the view."""
        self._done.set()
        self._thread.join()
        self._look()
        self._show([*self._waiting, self._rest] if self._rest else self._waiting)
        self._view.close()

    def _follow(self) -> None:
        while not self._done.wait(_SECONDS):
            self._look()

    def _look(self) -> None:
        while not self._said.empty():
            self._view.print(self._said.get())
        with self._looking:
            lines, self._waiting = self._waiting, self._new_lines()
            self._show(lines)
        self._view.poll()

    def _new_lines(self) -> list[bytes]:
        if not self._log.exists():
            return []
        with self._log.open("rb") as file:
            file.seek(self._position)
            new = file.read()
        self._position += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        return lines

    def _show(self, lines: list[bytes]) -> None:
        if not self._muted():
            for line in lines:
                self._view.print(line.decode(errors="replace"))
