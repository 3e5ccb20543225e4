"""What a run computes on: torch's interface of a device, and what each kind of device can do.

PyTorch has a module like `torch.cuda` for every accelerator with streams; AMD's GPUs (ROCm) use "cuda". Apple's GPUs
("mps") have one device, and neither streams, pinned memory, graphs nor float64, and their fused optimizers cannot skip
a step by a flag (ATen/native/mps/operations/FusedSgdKernel.mm).
"""

from __future__ import annotations

from typing import Any, Literal

from launcher.later import torch

Kind = Literal["cpu", "cuda", "mps"]

_WITHOUT_STREAMS = {"cpu", "meta", "mps"}
_WITHOUT_FLOAT64 = {"mps"}
_WITHOUT_FLAGS = {"mps"}


def interface(device: torch.device) -> Any:
    """Return the module of a device, such as torch.cuda."""
    return getattr(torch, device.type)


def has_streams(device: torch.device) -> bool:
    """Return whether a device runs behind the host, on streams that copy from pinned memory and can be captured."""
    return device.type not in _WITHOUT_STREAMS


def max_memory(device: torch.device) -> int | None:
    """Return the most bytes that this process has had on a device; None for one without its own memory."""
    return int(interface(device).max_memory_allocated(device)) if has_streams(device) else None


def use(device: torch.device) -> float | None:
    """Return the percentage of the last moments in which a device computed, as its driver counts; None if unknown.

    PyTorch reads it by nvidia-ml-py, or on AMD by amdsmi.
    """
    try:
        return float(interface(device).utilization(device))
    # note: without the package, in containers without the library and in parts of a GPU the errors have many types
    except Exception:
        return None


def widest(device: torch.device) -> torch.dtype:
    """Return the dtype in which a device sums: float64, or float32 where it has no wider one."""
    return torch.float32 if device.type in _WITHOUT_FLOAT64 else torch.float64


def drops_by_flag(device: torch.device) -> bool:
    """Return whether fused optimizers drop a step by a flag on the device."""
    return device.type not in _WITHOUT_FLAGS


def synchronize(device: torch.device) -> None:
    """Wait until a device has computed all that is queued."""
    if has_streams(device):
        interface(device).synchronize(device)
    elif device.type != "cpu":
        interface(device).synchronize()
