"""When a run's state goes to disk and comes back."""

from __future__ import annotations

from typing import Any

from launcher.records.folder import RunFolder
from launcher.training import checkpoint
from launcher.training.journal import Journal
from launcher.training.run import Run

KEPT = 2


def save(run: Run, journal: Journal, folder: RunFolder) -> None:
    """Rank 0 writes the run's state and keeps the newest files."""
    sums = journal.state_dict()
    if run.ranks.is_first:
        state = {**run.state_dict(), "journal": sums}
        checkpoint.save(state, folder.checkpoints / checkpoint.file_name(run.next_step))
        checkpoint.prune(folder.checkpoints, keep=KEPT)


def newest(folder: RunFolder) -> dict[str, Any] | None:
    """The state in the newest valid checkpoint, if there is one; damaged ones are named in the log and skipped."""
    found = checkpoint.newest_valid(folder.checkpoints, on_damaged=print)
    return found[1] if found else None
