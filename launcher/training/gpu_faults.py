"""What the NVIDIA driver has seen of a GPU that slows its rank or damages its results; needs nvidia-ml-py."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar

import torch

from launcher.training.rank_times import INTERVALS

# Bits of a code, what the driver has seen, and what to do. The number of an Xid error follows the bits.
_THERMAL, _POWER, _ECC, _ROWS = (1 << bit for bit in range(4))
_XID = 1 << 4
_SLOWED = {
    _THERMAL: ("lowers its clocks because it is too hot", "check its cooling (nvidia-smi -q -d TEMPERATURE)"),
    _POWER: ("lowers its clocks because of its power supply", "check the machine's supply (nvidia-smi -q -d POWER)"),
}
_DAMAGED = {
    _ECC: ("has new memory errors that ECC could not correct", "resume from a checkpoint before them on another GPU"),
    _ROWS: ("cannot replace damaged rows of its memory", "use another GPU, and have this one replaced"),
}

T = TypeVar("T")


class GpuFault(NamedTuple):
    """A fault of a rank's GPU: what the driver has seen, and what to do."""

    rank: int
    seen: str
    remedy: str

    def line(self, host: str) -> str:
        """Return a line with the place of the GPU."""
        return f"the GPU of rank {self.rank} on {host} {self.seen}; {self.remedy}"


class GpuFaults:
    """Finds the GPUs that have become slow or sick, by the codes of all ranks.

    A GPU is slow after several intervals in a row, and counts once until it recovers; an error counts at once.
    """

    def __init__(self) -> None:
        self._in_a_row: dict[tuple[int, int], int] = {}
        self._known: set[tuple[int, int]] = set()

    def add(self, codes: Sequence[int]) -> list[GpuFault]:
        """Return the faults that are new in a log interval."""
        slowed = {(rank, bit) for rank, code in enumerate(codes) for bit in _SLOWED if code & bit}
        self._in_a_row = {one: self._in_a_row.get(one, 0) + 1 for one in sorted(slowed)}
        new = [one for one, count in self._in_a_row.items() if count == INTERVALS]
        errors = {(rank, bit) for rank, code in enumerate(codes) for bit in _DAMAGED if code & bit}
        errors |= {(rank, code // _XID * _XID) for rank, code in enumerate(codes) if code >= _XID}
        new += sorted(errors - self._known)
        self._known |= errors
        return [GpuFault(rank, *_described(bit)) for rank, bit in new]


def _described(bit: int) -> tuple[str, str]:
    if bit < _XID:
        return {**_SLOWED, **_DAMAGED}[bit]
    return f"reported Xid error {bit // _XID}", "look it up in NVIDIA's list of Xid errors; dmesg has its details"


def fault_code(device: torch.device) -> int:
    """Return what the driver has seen of a GPU: bits and 16 times the last Xid error; 0 if nothing or unknown."""
    gpu = _watched(device) if device.type == "cuda" else None
    return 0 if gpu is None else gpu.code()


@cache
def _watched(device: torch.device) -> "_Gpu | None":
    """Start to watch a GPU; None without nvidia-ml-py or its library, and for a part of a GPU."""
    try:
        return _Gpu(str(torch.cuda.get_device_properties(device).uuid))
    # note: without the package, the library or the right to use it the errors have many types
    except Exception:
        return None


class _Gpu:
    """A GPU of the driver's library; errors count from the start of the watch on."""

    def __init__(self, uuid: str):
        import pynvml

        self._nvml: Any = pynvml
        self._nvml.nvmlInit()
        self._handle = self._nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        # note: read here, since an old package, which has other names, must not end a run later
        self._hot = pynvml.nvmlClocksEventReasonSwThermalSlowdown | pynvml.nvmlClocksEventReasonHwThermalSlowdown
        self._braked = pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown
        self._before, self._xid = self._uncorrected(), 0
        self._events = self._known(self._registered, None)

    def code(self) -> int:
        nvml = self._nvml
        reasons = self._known(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle), 0)
        code = _THERMAL if reasons & self._hot else 0
        code |= _POWER if reasons & self._braked else 0
        code |= _ECC if self._uncorrected() > self._before else 0
        code |= _ROWS if self._known(lambda: nvml.nvmlDeviceGetRemappedRows(self._handle)[3], 0) else 0
        self._xid = self._known(self._last_xid, 0) or self._xid
        return code + _XID * self._xid

    def _uncorrected(self) -> int:
        """Return the errors of the memory since the last start of the driver; 0 without ECC."""
        nvml = self._nvml
        kinds = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        return self._known(lambda: int(nvml.nvmlDeviceGetTotalEccErrors(self._handle, *kinds)), 0)

    def _registered(self) -> Any:
        events = self._nvml.nvmlEventSetCreate()
        self._nvml.nvmlDeviceRegisterEvents(self._handle, self._nvml.nvmlEventTypeXidCriticalError, events)
        return events

    def _last_xid(self) -> int:
        """Return the newest Xid error since the last call, 0 without one."""
        newest = 0
        while self._events is not None:
            try:
                newest = int(self._nvml.nvmlEventSetWait_v2(self._events, 0).eventData)
            except self._nvml.NVMLError_Timeout:
                break
        return newest

    def _known(self, query: Callable[[], T], otherwise: T) -> T:
        """Return the result of a query, or what stands for one that this GPU or driver does not support."""
        try:
            return query()
        except (self._nvml.NVMLError, AttributeError):
            return otherwise
