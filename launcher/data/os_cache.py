"""Do the files fit into the memory that is free? Then they are read into it; imports no torch."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import psutil

# Part of the free memory that files may take: workers, pinned batches and evaluation need the rest.
_SHARE = 0.8
_GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def free_memory() -> int:
    """Bytes that are available on the machine, or left to this container if that is less."""
    free = int(psutil.virtual_memory().available)
    for limit_file, used_file in _GROUPS:
        try:
            limit, used = Path(limit_file).read_text().strip(), Path(used_file).read_text().strip()
        except OSError:
            continue
        if limit != "max":
            free = min(free, max(0, int(limit) - int(used)))
    return free


def choose(asked: bool | str, sizes: Iterable[int], free: int) -> tuple[bool, str]:
    """Whether to have the system read the files into memory, and a line that says so and why.

    asked: true, false, or auto. sizes: the files' in bytes. free: bytes of memory.
    """
    files = sum(sizes)
    facts = f"files {files / 1e9:.2f} GB, free memory {free / 1e9:.2f} GB"
    fits = files <= _SHARE * free
    kept = fits if asked == "auto" else bool(asked)
    how = "read into memory ahead" if kept else "read picture by picture"
    return kept, f"dataloader.os_cache={str(asked).lower()}: {how} ({facts})"
