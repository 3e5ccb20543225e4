"""What the machine has and what is installed on it, judged."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import psutil

from launcher.doctor.finding import Finding, ok, problem, size, warning
from launcher.doctor.gpus import GpuState
from launcher.probe import TORCH, Answer, ask, lacking_kernels, usable_cores

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


_FFCV = """
import json, launcher.data.ffcv.decoder
from importlib.metadata import version
print(json.dumps({"ffcv": version("ffcv")}))
"""
# Least driver of a CUDA release (NVIDIA's CUDA compatibility table).
_LEAST_DRIVER = {"11": 450, "12": 525, "13": 580}
_SETUP = "scripts/setup.sh builds it"


def examine_software(gpus: list[GpuState] | None, loader: str) -> Iterator[Finding]:
    """Look at the installed packages, for a run with this dataloader; what takes seconds is asked side by side."""
    import PIL

    with ThreadPoolExecutor() as probes:
        torch, ffcv = probes.submit(ask, TORCH, "thoroughly"), probes.submit(ask, _FFCV)
        yield judge_python(sys.version_info[:2])
        yield judge_pillow(PIL.__version__, _processor_flags())
        yield judge_torch(torch.result())
        yield from judge_cuda(torch.result(), gpus or [])
        yield judge_ffcv(ffcv.result(), loader)


def judge_python(version: tuple[int, ...]) -> Finding:
    if version < (3, 10):
        return problem("Python", platform.python_version(), "install 3.10 or newer")
    return ok("Python", platform.python_version())


def judge_torch(answer: Answer) -> Finding:
    if answer.values is None:
        return problem("torch", answer.error, "make setup installs the versions of requirements.lock")
    return ok("torch", f"{answer.values['torch']}, torchvision {version('torchvision')}")


def judge_cuda(answer: Answer, gpus: list[GpuState]) -> list[Finding]:
    """CUDA and NCCL as torch brings them, against the driver of the GPUs that are there."""
    values = answer.values
    if values is None:
        return []
    seen = values["gpus"]
    if not (gpus or seen):
        return [ok("CUDA", f"{values['cuda'] or 'none'} in torch, not in use")]
    if values["cuda"] is None and not values["hip"]:
        return [
            problem("CUDA", "torch was built without it", "install torch from the package index, not the CPU build")
        ]
    if not seen:
        advice = _driver_advice(values["cuda"], gpus[0], values["error"])
        return [problem("CUDA", f"torch with CUDA {values['cuda']} sees no GPU", advice)]
    if lacking := lacking_kernels(values):
        return [problem("CUDA", *lacking.split("; ", 1))]
    if values["error"]:
        return [problem("CUDA", f"a GPU fails: {values['error'].partition(chr(10))[0]}", "nvidia-smi names the GPU")]
    runtime = f"ROCm {values['hip']}" if values["hip"] else values["cuda"]
    precision = "bfloat16" if values["bf16"] else "float16 only"
    found = [ok("CUDA", f"{runtime}, torch sees {len(seen)} GPU{'s' * (len(seen) > 1)}, {precision}")]
    if values["nccl"] is None:
        return [*found, problem("NCCL", "none in torch", "GPUs cannot talk to each other: install torch for CUDA")]
    return [*found, ok("NCCL", values["nccl"])]


def judge_pillow(version: str, flags: set[str]) -> Finding:
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


def _driver_advice(cuda: str, gpu: GpuState, error: str) -> str:
    least, installed = _LEAST_DRIVER.get(cuda.partition(".")[0]), gpu.driver.partition(".")[0]
    if least is not None and installed.isdigit() and int(installed) < least:
        return f"CUDA {cuda} needs driver {least} or newer, this is {gpu.driver}: update the driver"
    return f"look at CUDA_VISIBLE_DEVICES; CUDA says: {error.partition(chr(10))[0]}"


def _processor_flags() -> set[str]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((set(line.split()) for line in lines if line.startswith("flags")), set())
