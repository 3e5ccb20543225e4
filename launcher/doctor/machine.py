"""What the machine has and what is installed on it, judged; each judgement is a line of `train doctor`."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from rich.filesize import decimal

from launcher.probe import Answer, usable_cores, usable_memory

_CORES_A_RANK = 8  # the most loader workers that a rank takes
_MEMORY_A_RANK = 4 * 10**9  # a process with torch and its loader workers
_TWO_CHECKPOINTS = 2 * 10**9  # of a ResNet-50 with momentum and averaged weights, and one being written
_CGROUP = Path("/sys/fs/cgroup")
_SETUP = "scripts/setup.sh builds it"


Status = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """One line of `train doctor`: a warning costs time or money, a problem keeps the run from working.

    `advice` says what to do, and is empty where nothing is to be done.
    """

    name: str
    status: Status
    found: str
    advice: str = ""


def ok(name: str, found: str) -> Finding:
    return Finding(name, "ok", found)


def warning(name: str, found: str, advice: str) -> Finding:
    return Finding(name, "warning", found, advice)


def problem(name: str, found: str, advice: str) -> Finding:
    return Finding(name, "problem", found, advice)


@dataclass(frozen=True)
class Need:
    """What a run asks of the machine: bytes of batches on their way from the workers, and where it writes."""

    ranks: int
    shared_memory: int
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


def memory(total: int, available: int, ranks: int) -> Finding:
    name, found = "memory", f"{decimal(available)} free of {decimal(total)}"
    if available < _MEMORY_A_RANK * ranks:
        advice = f"{decimal(_MEMORY_A_RANK * ranks)} are usual for so many processes; end other programs"
        return warning(name, found, advice)
    return ok(name, found)


def shared_memory(free: int | None, need: int) -> Finding:
    """Loader workers hand their batches over in /dev/shm; too little of it ends a run with a bus error."""
    name = "shared memory"
    if free is None:
        return warning(name, "no /dev/shm", "mount it: loader workers hand their batches over there")
    found = f"{decimal(free)} free in /dev/shm, {decimal(need)} needed"
    if free < need:
        return problem(name, found, "docker run --ipc=host (or --shm-size), or fewer dataloader.workers")
    return ok(name, found)


def disk(free: int, writable: bool, runs: Path) -> Finding:
    name, found = "disk", f"{decimal(free)} free for {runs}"
    if not writable:
        return problem(name, f"{runs} may not be written", "choose another folder with runs=FOLDER, or its permissions")
    if free < _TWO_CHECKPOINTS:
        return warning(name, found, f"checkpoints may need {decimal(_TWO_CHECKPOINTS)}: free some, or runs=FOLDER")
    return ok(name, found)


def examine_machine(need: Need) -> list[Finding]:
    """Look at this machine."""
    folder = _nearest_existing(need.runs)
    total, available = usable_memory()
    shm = shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else None
    return [
        cores(usable_cores(), allowed_cores(_CGROUP), need.ranks),
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


def _nearest_existing(folder: Path) -> Path:
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())


def judge_torch(answer: Answer) -> Finding:
    if answer.values is None:
        return problem("torch", answer.error, "make setup installs the versions of requirements.lock")
    return ok("torch", f"{answer.values['torch']}, torchvision {version('torchvision')}")


def judge_pillow(version: str, flags: list[str]) -> Finding:
    name = "Pillow"
    if ".post" in version:
        return ok(name, f"Pillow-SIMD {version}")
    if flags and "avx2" not in flags:
        return ok(name, f"Pillow {version}; the processor has no AVX2 for Pillow-SIMD")
    advice = f"Pillow-SIMD resizes faster on this processor; {_SETUP} where a compiler is installed"
    return warning(name, f"Pillow {version}, not Pillow-SIMD", advice)


def judge_ffcv(answer: Answer, loader: str) -> Finding:
    if answer.values is not None:
        return ok("FFCV", answer.values["ffcv"])
    missing = "not installed" if "No module named 'ffcv'" in answer.error else answer.error
    if loader == "ffcv":
        return problem("FFCV", missing, f"{_SETUP}; dataloader=torchvision runs without it")
    return warning("FFCV", missing, f"{_SETUP}; needed by dataloader=ffcv only")
