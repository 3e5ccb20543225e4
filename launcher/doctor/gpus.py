"""The GPUs as the driver tells of them: nvidia-smi, without torch."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from launcher.doctor.finding import Finding, ok, problem, size, warning

_NVIDIA = "0x10de"
_DISPLAY = "0x03"
_QUERY = "index,name,driver_version,memory.total,memory.used,mig.mode.current"
_IN_USE = 2e9  # bytes; less is a desktop or an idle context


@dataclass(frozen=True)
class GpuState:
    """One GPU; memory in bytes."""

    index: str
    name: str
    driver: str
    memory: float
    used: float
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
    found = f"{len(gpus)} x {first.name}, {size(first.memory)}"
    driver = ok("driver", first.driver)
    if len({gpu.name for gpu in gpus}) > 1:
        different = ", ".join(sorted({gpu.name for gpu in gpus}))
        advice = "all go at the pace of the slowest; choose some with CUDA_VISIBLE_DEVICES"
        return [warning("GPUs", f"{len(gpus)} of different kinds: {different}", advice), driver]
    if any(gpu.mig for gpu in gpus):
        return [warning("GPUs", f"{found}, cut into MIG parts", "a run takes one part; whole cards are faster"), driver]
    if busy := [gpu for gpu in gpus if gpu.used > _IN_USE]:
        names = ", ".join(f"{gpu.index} ({size(gpu.used)} in use)" for gpu in busy)
        advice = "another program works there (nvidia-smi names it); end it, or set CUDA_VISIBLE_DEVICES"
        return [warning("GPUs", f"{found}; GPU {names}", advice), driver]
    return [ok("GPUs", found), driver]


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
    return warning("GPUs", "none", "trains on the CPU, which suits small pictures and short runs only")


def _bytes(mib: str) -> float:
    return float(mib) * 2**20 if mib.replace(".", "").isdigit() else 0.0


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
