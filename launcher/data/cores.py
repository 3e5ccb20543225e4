"""How many processor cores this process may use."""

from __future__ import annotations

import os

# The environment variable that gives each local rank cores of its own: `0,1;2,3`; none where nothing is bound.
BOUND = "TRAIN_CORES"


def rank_cores(local_world_size: int) -> int:
    """Cores of one rank: its own where it is bound to some, else its part of all."""
    cores = usable_cores()
    return cores if os.environ.get(BOUND) else max(1, cores // local_world_size)


def usable_cores() -> int:
    """Cores of the process's affinity mask, where the system has one."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
