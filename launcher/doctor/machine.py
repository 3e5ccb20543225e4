"""Cores, memory, shared memory and disk, with the limits of a container."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil

from launcher.doctor.finding import Finding, ok, problem, size, warning

_CORES_A_RANK = 8  # the most loader workers that a rank takes
_MEMORY_A_RANK = 4e9  # a process with torch and its loader workers
_TWO_CHECKPOINTS = 2e9  # of a ResNet-50 with momentum and averaged weights, and one being written
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Need:
    """What a run asks of the machine: bytes of batches on their way from the workers, and where it writes."""

    ranks: int
    shared_memory: float
    runs: Path


def cores(usable: int, allowed: float | None, ranks: int) -> Finding:
    """`usable` cores by affinity, of which a container may use so much time as `allowed` cores have."""
    name, found = "cores", f"{usable} for {ranks} process{'es' * (ranks > 1)}"
    if allowed is not None and allowed < usable:
        advice = "give the container all its cores (docker run without --cpus), or pin them with --cpuset-cpus"
        return warning(name, f"{found}, but the container may use the time of {allowed:g}", advice)
    if usable < _CORES_A_RANK * ranks:
        advice = f"with {_CORES_A_RANK} a process loading keeps up more easily; smaller files and dataloader=ffcv help"
        return warning(name, found, advice)
    return ok(name, found)


def memory(total: float, available: float, ranks: int) -> Finding:
    name, found = "memory", f"{size(available)} free of {size(total)}"
    if available < _MEMORY_A_RANK * ranks:
        advice = f"{size(_MEMORY_A_RANK * ranks)} are usual for {ranks} process{'es' * (ranks > 1)}; end other programs"
        return warning(name, found, advice)
    return ok(name, found)


def shared_memory(free: float | None, need: float) -> Finding:
    """Loader workers hand their batches over in /dev/shm; too little of it ends a run with a bus error."""
    name = "shared memory"
    if free is None:
        return warning(name, "no /dev/shm", "mount it: loader workers hand their batches over there")
    found = f"{size(free)} free in /dev/shm, {size(need)} needed"
    if free < need:
        return problem(name, found, "docker run --ipc=host (or --shm-size), or fewer dataloader.workers")
    return ok(name, found)


def disk(free: float, writable: bool, runs: Path) -> Finding:
    name, found = "disk", f"{size(free)} free for {runs}"
    if not writable:
        return problem(name, f"{runs} may not be written", "choose another folder with runs=FOLDER, or its permissions")
    if free < _TWO_CHECKPOINTS:
        return warning(name, found, f"checkpoints may need {size(_TWO_CHECKPOINTS)}: free some, or runs=OTHER_FOLDER")
    return ok(name, found)


def examine_machine(need: Need) -> list[Finding]:
    """Look at this machine."""
    folder = _nearest_existing(need.runs)
    virtual = psutil.virtual_memory()
    total, available = _container_memory(virtual.total, virtual.available)
    shm = shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else None
    return [
        cores(len(os.sched_getaffinity(0)), allowed_cores(_CGROUP), need.ranks),
        memory(total, available, need.ranks),
        shared_memory(shm, need.shared_memory),
        disk(shutil.disk_usage(folder).free, os.access(folder, os.W_OK), need.runs),
    ]


def allowed_cores(cgroup: Path) -> float | None:
    """The processor time that a container may use, in cores; None: all there is."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _container_memory(total: float, available: float) -> tuple[float, float]:
    """Total and free bytes within the container's limit, if it has one."""
    try:
        limit = int((_CGROUP / "memory.max").read_text())
        used = int((_CGROUP / "memory.current").read_text())
    except (OSError, ValueError):
        return total, available
    return min(total, limit), min(available, limit - used)


def _nearest_existing(folder: Path) -> Path:
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
