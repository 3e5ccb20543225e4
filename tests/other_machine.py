"""Simulate another processor: TRAIN_TEST_PROCESSOR=amx or avx2, TRAIN_TEST_CORES=8.

pytest, the commands that it starts and their ranks call `simulate`, which does nothing without these variables. The
libraries really compute with AVX2 only; AMX is a flag, so that its bf16 is computed by what the processor has.
"""

import ctypes
import os
import socket
from pathlib import Path

from launcher.compute import probe

_WITHOUT = {"amx": (), "avx2": ("avx512", "amx")}
_ADDED = {"amx": ["amx_tile", "amx_bf16", "amx_int8"], "avx2": []}
# Of ATen and oneDNN, read when torch is imported.
_LIBRARIES = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
_HOST_NAME = 0x04000000  # CLONE_NEWUTS of Linux
_HOOK = Path(__file__).parent / "in_ranks"


def be_host(name: str) -> None:
    """Give this process a host name of its own, which needs root."""
    assert ctypes.CDLL(None).unshare(_HOST_NAME) == 0
    socket.sethostname(name)


def simulate() -> None:
    """Change what `launcher.compute.probe` reads of the processor and the cores, here and in new interpreters."""
    kind, cores = os.environ.get("TRAIN_TEST_PROCESSOR"), int(os.environ.get("TRAIN_TEST_CORES", "0"))
    if kind:
        _simulate_features(kind)
    if cores:
        os.sched_getaffinity = lambda process: set(range(cores))
    if kind or cores:
        path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        own = [one for one in (str(_HOOK), str(_HOOK.parents[1])) if one not in path]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*own, *path]))


def _simulate_features(kind: str) -> None:
    read = probe.processor

    def processor(*names: str) -> str:
        text = read(*names)
        if "flags" not in names:
            return text
        return " ".join([*(flag for flag in text.split() if not flag.startswith(_WITHOUT[kind] or "-")), *_ADDED[kind]])

    probe.processor = processor
    if kind == "avx2":
        os.environ.update(_LIBRARIES)
