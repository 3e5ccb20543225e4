"""What ranks and their loader workers put outside the run folder, so named that it is found once they are gone.

A process that is killed, or ends at once, removes neither its sockets nor the named semaphores of its queues.
"""

from __future__ import annotations

import multiprocessing
from pathlib import Path

_SEMAPHORES = Path("/dev/shm")


def name_after(scratch: Path) -> None:
    """Have this process, and those it starts, put sockets into the scratch folder and name semaphores after it."""
    # note: no public setting, but every process that multiprocessing starts is given a copy of it
    settings = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    settings["tempdir"], settings["semprefix"] = str(scratch), f"/{scratch.name}"


def remove_semaphores(scratch: Path) -> None:
    """Remove those named after a scratch folder; no process may need them any more."""
    for path in _SEMAPHORES.glob(f"sem.{scratch.name}-*"):
        path.unlink(missing_ok=True)
