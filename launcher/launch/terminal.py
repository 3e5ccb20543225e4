"""What the terminal shows while the ranks run: rank 0's log, and a view of the run's progress."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Protocol

_SECONDS = 0.2


class TerminalView(Protocol):
    """Shows a run's progress; `print` puts a line above it."""

    def poll(self) -> None: ...

    def print(self, line: str) -> None: ...

    def close(self) -> None: ...


class LogFollower:
    """A thread that prints new lines of a log file and polls the view, until it is closed."""

    def __init__(self, log: Path, view: TerminalView):
        self._log, self._view = log, view
        self._position = log.stat().st_size if log.exists() else 0
        self._rest = b""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="terminal", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Show what is left and end the view."""
        self._done.set()
        self._thread.join()
        self._show()
        if self._rest:
            self._view.print(self._rest.decode(errors="replace"))
        self._view.close()

    def _follow(self) -> None:
        while not self._done.wait(_SECONDS):
            self._show()

    def _show(self) -> None:
        if self._log.exists():
            with self._log.open("rb") as file:
                file.seek(self._position)
                new = file.read()
            self._position += len(new)
            *lines, self._rest = (self._rest + new).split(b"\n")
            for line in lines:
                self._view.print(line.decode(errors="replace"))
        self._view.poll()
