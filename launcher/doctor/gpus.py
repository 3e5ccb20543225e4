"""The GPUs as the driver lists them (nvidia-smi, without torch), and the CUDA of torch against that driver."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from rich.filesize import decimal

from launcher.doctor.machine import Finding, ok, problem, warning
from launcher.probe import Answer, lacking_kernels

_NVIDIA = "0x10de"
_DISPLAY = "0x03"
_QUERY = "index,name,driver_version,memory.total,memory.used,mig.mode.current"
# Least driver of a CUDA release (NVIDIA's CUDA compatibility table).
_LEAST_DRIVER = {"11": 450, "12": 525, "13": 580}
_IN_USE = 2 * 10**9  # bytes; less is a desktop or an idle context


@dataclass(frozen=True)
class GpuState:
    """One GPU; memory in bytes."""

    index: str
    name: str
    driver: str
    memory: int
    used: int
    mig: bool


def read_gpus() -> list[GpuState] | None:
    """The GPUs that nvidia-smi lists; None where it is missing or cannot talk to the driver."""
    command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_gpus(answer.stdout)


def parse_gpus(text: str) -> list[GpuState]:
    """nvidia-smi's rows; its memory is in MiB."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    return [
        GpuState(i, name, driver, _bytes(total), _bytes(used), mig == "Enabled")
        for i, name, driver, total, used, mig in rows
    ]


def judge_gpus(gpus: list[GpuState] | None, cards: int, others: list[str]) -> list[Finding]:
    """`cards` is the number of NVIDIA cards on the bus, driver or none; `others` are names of AMD's that torch sees."""
    if not gpus and others:
        advice = "no recipe has been trained on AMD's GPUs yet: compare a short run with one on the CPU"
        return [warning("GPUs", f"{len(others)} x {others[0]}, through ROCm", advice)]
    if not gpus:
        return [_without(cards)]
    first = gpus[0]
    found = f"{len(gpus)} x {first.name}, {decimal(first.memory)}"
    driver = ok("driver", first.driver)
    if len({gpu.name for gpu in gpus}) > 1:
        different = ", ".join(sorted({gpu.name for gpu in gpus}))
        advice = "all go at the pace of the slowest; choose some with CUDA_VISIBLE_DEVICES"
        return [warning("GPUs", f"{len(gpus)} of different kinds: {different}", advice), driver]
    if any(gpu.mig for gpu in gpus):
        return [warning("GPUs", f"{found}, cut into MIG parts", "a run takes one part; whole cards are faster"), driver]
    if busy := [gpu for gpu in gpus if gpu.used > _IN_USE]:
        names = ", ".join(f"{gpu.index} ({decimal(gpu.used)} in use)" for gpu in busy)
        advice = "another program works there (nvidia-smi names it); end it, or set CUDA_VISIBLE_DEVICES"
        return [warning("GPUs", f"{found}; GPU {names}", advice), driver]
    return [ok("GPUs", found), driver]


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


def cards_on_the_bus(devices: Path = Path("/sys/bus/pci/devices")) -> int:
    """NVIDIA display and 3D controllers that the kernel sees."""
    return sum(
        _read(device / "vendor") == _NVIDIA and _read(device / "class").startswith(_DISPLAY)
        for device in (devices.iterdir() if devices.is_dir() else ())
    )


def _without(cards: int) -> Finding:
    if cards:
        found = f"{cards} NVIDIA card{'s' * (cards > 1)} on the bus, no working driver"
        return problem("GPUs", found, "install NVIDIA's driver; in a container: docker run --gpus all")
    return warning("GPUs", "none", "trains on the CPU, which suits small images and short runs only")


def _driver_advice(cuda: str, gpu: GpuState, error: str) -> str:
    least, installed = _LEAST_DRIVER.get(cuda.partition(".")[0]), gpu.driver.partition(".")[0]
    if least is not None and installed.isdigit() and int(installed) < least:
        return f"CUDA {cuda} needs driver {least} or newer, this is {gpu.driver}: update the driver"
    return f"look at CUDA_VISIBLE_DEVICES; CUDA says: {error.partition(chr(10))[0]}"


def _bytes(mib: str) -> int:
    return int(mib) * 2**20 if mib.isdigit() else 0


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
