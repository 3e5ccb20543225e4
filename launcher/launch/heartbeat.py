"""Signs of life: a rank touches a file at every step, the launcher notices when it no longer does."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from pathlib import Path

DUMP_SIGNAL = signal.SIGUSR2


class Heartbeat:
    """A rank's side: silent until started."""

    def __init__(self) -> None:
        self._path: Path | None = None

    def start(self, scratch: Path) -> None:
        """Begin to show life, and write every thread's stack to this process's standard error when asked."""
        faulthandler.register(DUMP_SIGNAL, file=sys.stderr, all_threads=True)
        self._path = beat_file(scratch, os.getpid())
        self._path.touch()

    def beat(self) -> None:
        """Progress was made: a step, a batch of an evaluation, a save."""
        if self._path is not None:
            os.utime(self._path)


# This process's heartbeat.
HEARTBEAT = Heartbeat()


def beat_file(scratch: Path, process: int) -> Path:
    return scratch / f"beat-{process}"
