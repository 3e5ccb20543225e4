"""Which pictures a run has trained on: their identity, and another wherever a resume found others."""

from __future__ import annotations

import json
from typing import Any

from launcher.records.folder import RunFolder


def note_dataset(folder: RunFolder, identity: str) -> bool:
    """Write down what the run trains on from now on; returns whether it is other than before."""
    before = noted_datasets(folder)
    if before[-1:] == (identity,):
        return False
    temporary = folder.dataset.with_suffix(".tmp")
    temporary.write_text(json.dumps({"identities": [*before, identity]}, indent=1) + "\n")
    temporary.replace(folder.dataset)
    return bool(before)


def noted_datasets(folder: RunFolder) -> tuple[str, ...]:
    """What was written down, in order; nothing of a run of an earlier version."""
    try:
        found: Any = json.loads(folder.dataset.read_bytes())["identities"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ()
    return tuple(map(str, found)) if isinstance(found, list) else ()
