"""Probe this machine; its GPUs in another process, because a CUDA context would occupy GPU memory."""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The environment variable with the number of ranks that share the cores of a rank.
SHARING = "TRAIN_SHARING"
# Run a kernel on the first GPU; with an argument on all GPUs, and import torchvision too.
# note: by the CUDA runtime, because NVML also counts cards that are partitioned, faulty or unsupported
TORCH = """
import json, os, sys, torch
if sys.argv[1:]:
    import torchvision
os.environ.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)
def describe(number):
    gpu = torch.cuda.get_device_properties(number)
    place = [getattr(gpu, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    address = None if None in place else "{:04x}:{:02x}:{:02x}.0".format(*place)
    return {"name": gpu.name, "memory_bytes": gpu.total_memory, "capability": [gpu.major, gpu.minor],
            "address": address}
gpus, error, bf16 = [], "", False
try:
    torch.cuda.init()
    gpus = [describe(number) for number in range(torch.cuda.device_count())]
    for number, gpu in enumerate(gpus if sys.argv[1:] else gpus[:1]):
        torch.zeros(1, device=number).add_(1).item()
    bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
except (RuntimeError, AssertionError) as caught:
    error = str(caught).strip()
    if "no kernel image" in error:
        error = f"torch {torch.__version__} has no kernels for {gpu['name']}; use an older one or a build for CUDA 12.6"
nccl = torch.cuda.nccl.version() if gpus and torch.distributed.is_nccl_available() else None
print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip,
                  "mps": torch.backends.mps.is_available(),
                  "nccl": nccl and ".".join(map(str, nccl)), "gpus": gpus, "bf16": bf16, "error": error}))
"""


SYSTEM = Path("/sys")
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class ProbeResult:
    """What a probe printed, or the last line of its error."""

    values: dict[str, Any] | None
    error: str = ""


def run_probe(script: str, *words: str) -> ProbeResult:
    """Run a probe with arguments in this Python; it prints one JSON object."""
    try:
        command = [sys.executable, "-c", script, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired:
        return ProbeResult(None, "no result within five minutes")
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exited with code {done.returncode}"]
        return ProbeResult(None, lines[-1])
    return ProbeResult(json.loads(done.stdout.splitlines()[-1]))


def rank_cores(local_world_size: int) -> int:
    """Return the cores per rank on this machine, or of this rank if it is bound to a NUMA node; at least one."""
    return max(1, usable_cores() // int(os.environ.get(SHARING, local_world_size)))


def free_shared_memory() -> int | None:
    """Return the free bytes of /dev/shm, through which loader workers pass batches; None without one."""
    folder = Path("/dev/shm")
    return shutil.disk_usage(folder).free if folder.is_dir() else None


def processor(*names: str) -> str:
    """Return what Linux lists of the first processor under one of some names; empty on other systems."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(names)), "")


def processor_features() -> list[str]:
    """Return the processor's feature flags as Linux lists them, such as `amx_bf16`; empty on other systems."""
    return processor("flags", "Features").split()


def has_driver(devices: Path = Path("/dev")) -> bool:
    """Return whether a GPU driver is loaded (NVIDIA, ROCm, or WSL), without importing torch."""
    return any(path for pattern in ("nvidia*", "kfd", "dxg") for path in devices.glob(pattern))


def visible_gpus(devices: Path = Path("/dev")) -> int:
    """Count the GPUs that this process may use, without creating a context; CUDA may support fewer.

    NVIDIA's are counted by their device files and CUDA_VISIBLE_DEVICES, others by torch, which takes seconds to import.
    """
    if files := len(list(devices.glob("nvidia[0-9]*"))):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is None:
            return files
        # note: CUDA ends the list at the first invalid name, such as -1 or NoDevFiles
        chosen = itertools.takewhile(re.compile(r"\s*(\d+|(GPU|MIG)-.*)\s*").fullmatch, visible.split(","))
        return min(files, len(list(chosen)))
    if not has_driver(devices):
        return 0
    import torch

    return torch.cuda.device_count()


def usable_cores() -> int:
    """Count the cores whose time this process may use: those of its mask, or fewer by its container's quota."""
    cores, quota = cores_of_mask(), allowed_cores()
    return cores if quota is None else max(1, min(cores, int(quota)))


def cores_of_mask() -> int:
    """Count the cores of the process's affinity mask, or of the machine if the system has no mask."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def allowed_cores(cgroup: Path = CGROUP) -> float | None:
    """Return a container's CPU quota in cores, or None without one."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def remedy_of_cuda(error: str) -> str:
    """Return what to do about an error of CUDA on GPUs that are visible."""
    if "802" in error:
        # note: GPUs behind NVSwitch, as on HGX machines, wait for it
        return "start NVIDIA's Fabric Manager of the driver's version: sudo systemctl start nvidia-fabricmanager"
    return "check the driver with train doctor, or set launch.device=cpu"


def numa_nodes(addresses: Sequence[str | None], system: Path = SYSTEM) -> list[str]:
    """Return the NUMA node of each GPU by its address on the PCI bus, `-1` or empty if unknown."""
    return [_read(system / "bus/pci/devices" / (address or "unknown") / "numa_node") for address in addresses]


def numa_cores(addresses: Sequence[str | None], system: Path = SYSTEM) -> list[list[int]] | str:
    """Return the cores of each GPU's NUMA node that this process may use, or why its rank cannot be bound to them.

    `torch.numa.binding` has the same nodes, but needs a CUDA context here and the program numactl.
    """
    folder = system / "devices/system/node"
    if len([*folder.glob("node[0-9]*")]) < 2 or not hasattr(os, "sched_setaffinity"):
        return "this machine shows one NUMA node"
    cores: list[list[int]] = []
    for number, node in enumerate(numa_nodes(addresses, system)):
        cores.append(sorted(_numbers(_read(folder / f"node{node}" / "cpulist")) & os.sched_getaffinity(0)))
        if not cores[-1]:
            return f"the NUMA node of GPU {number} is unknown, or this process may use none of its cores"
    return cores or "only GPUs have one"


def _numbers(ranges: str) -> set[int]:
    """Return the numbers of ranges such as `0-3,8`."""
    ends = (one.partition("-") for one in ranges.split(",") if one)
    return {number for first, _, last in ends for number in range(int(first), int(last or first) + 1)}


def cards_on_the_bus(devices: Path = Path("/sys/bus/pci/devices")) -> int:
    """Count the NVIDIA display and 3D controllers on the PCI bus."""
    return sum(
        _read(device / "vendor") == "0x10de" and _read(device / "class").startswith("0x03")
        for device in (devices.iterdir() if devices.is_dir() else ())
    )


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
