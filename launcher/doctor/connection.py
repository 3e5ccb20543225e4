"""Measure the connection between the GPUs of this machine: one all-reduce by one process a GPU, within a minute."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.counts import count_of
from launcher.doctor.machine import Finding, ok, problem, warning

SECONDS = 60.0
_MB = 100
_SLOW, _PCIE = 5.0, 60.0  # GB/s: a PCIe slot has 16 to 63, NVLink 150 or more (conf/gpus.yaml)
_POLL = 0.1  # seconds
_TRY = "set NCCL_DEBUG=INFO to see why, try NCCL_P2P_DISABLE=1; nvidia-smi topo -m shows how they are connected"

# Write GB/s to a file: what a ring sends through each link, as nccl-tests' bus bandwidth.
_RANK = """
import sys, time, torch, torch.distributed as dist
rank, count, kind, store, megabytes = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:5], int(sys.argv[5])
device = torch.device(kind, rank) if kind == "cuda" else torch.device(kind)
if kind == "cuda":
    torch.cuda.set_device(device)
backend = "nccl" if kind == "cuda" else "gloo"
dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=count)
values, rounds = torch.ones(megabytes * 250_000, device=device), 5
def seconds(rounds):
    float(values[0])
    start = time.perf_counter()
    for _ in range(rounds):
        dist.all_reduce(values, dist.ReduceOp.MAX)
    float(values[0])
    return time.perf_counter() - start
seconds(2)
rate = rounds * megabytes / 1000 * 2 * (count - 1) / count / seconds(rounds)
open(f"{store}-{rank}", "w").write(str(rate))
dist.barrier()
dist.destroy_process_group()
"""


@dataclass(frozen=True)
class Measured:
    """GB/s of each link in one direction, or why there is no figure, with the ranks that have not ended."""

    rate: float = 0.0
    error: str = ""
    silent: Sequence[int] = ()


def all_reduce(count: int, kind: str = "cuda") -> Measured:
    """All-reduce 100 MB between `count` processes, each with a GPU (`cuda`, by NCCL) or the CPU (`cpu`, by gloo)."""
    with tempfile.TemporaryDirectory(prefix="train-") as name:
        folder = Path(name)
        ranks = [_started(rank, count, kind, folder) for rank in range(count)]
        try:
            return _waited(ranks, folder, time.monotonic() + SECONDS)
        finally:
            for number, rank in enumerate(ranks):
                rank.kill()
                rank.wait()
                if "NCCL_DEBUG" in os.environ:
                    print(_log(folder, number).read_text(errors="replace"), file=sys.stderr)


def _log(folder: Path, rank: int) -> Path:
    return folder / f"{rank}.log"


def _started(rank: int, count: int, kind: str, folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", _RANK, str(rank), str(count), kind, str(folder / "store"), str(_MB)]
    # note: not through a pipe, which what NCCL_DEBUG prints would fill
    with _log(folder, rank).open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def _waited(ranks: Sequence["subprocess.Popen[bytes]"], folder: Path, end: float) -> Measured:
    while running := [number for number, rank in enumerate(ranks) if rank.poll() is None]:
        if any(rank.returncode for rank in ranks):
            break
        if time.monotonic() > end:
            return Measured(silent=running)
        time.sleep(_POLL)
    for number, rank in enumerate(ranks):
        if rank.returncode:
            lines = _log(folder, number).read_text(errors="replace").strip().splitlines()
            return Measured(error=f"process {number}: {lines[-1] if lines else f'exited with code {rank.returncode}'}")
    return Measured(rate=min(float((folder / f"store-{number}").read_text()) for number in range(len(ranks))))


def judge(measured: Measured, count: int) -> Finding:
    """Judge the connection of `count` GPUs."""
    name, gpus = "all-reduce", count_of(count, "GPU")
    if measured.silent:
        waiting = ", ".join(map(str, measured.silent))
        return problem(name, f"{_MB} MB between {gpus} not within {SECONDS:g} s (GPUs {waiting} wait)", _TRY)
    if measured.error:
        return problem(name, f"fails between {gpus}: {measured.error}", _TRY)
    observation = f"{measured.rate:.3g} GB/s between {gpus}"
    if measured.rate < _SLOW:
        return warning(name, f"{observation}, less than a PCIe slot has", _TRY)
    return ok(name, f"{observation}, as over {'PCIe' if measured.rate < _PCIE else 'NVLink'}")
