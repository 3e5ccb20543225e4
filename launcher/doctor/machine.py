"""Judge the machine and its installed packages; each judgement is a line of `train doctor`."""

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from rich.filesize import decimal

from launcher.compute.host_memory import HostMemory, usable_memory
from launcher.compute.probe import (
    SYSTEM,
    ProbeResult,
    allowed_cores,
    cores_of_mask,
    free_shared_memory,
    numa_nodes,
    remedy_of_cuda,
)
from launcher.config.choices import LoaderConfig
from launcher.config.gpus import locked_torch
from launcher.counts import count_of
from launcher.data.jpeg import DECODERS, installed
from launcher.data.loaders.base import DecodingLoader
from launcher.errors import UserError
from launcher.installation import how_to_add

_CORES_A_RANK = 8  # with fewer, most GPUs wait for the loader
_TWO_CHECKPOINTS = 2 * 10**9  # of a ResNet-50 with momentum and averaged weights, and one being written
_SAFE_PILLOW = (12, 3)
_QUERY = "index,name,driver_version,memory.total,memory.used,mig.mode.current"
_IN_USE = 2 * 10**9  # bytes; less is a desktop or an idle context


Status = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """One line of `train doctor`: a warning costs time or money, a problem keeps the run from working.

    `advice` is what to do, empty if nothing.
    """

    name: str
    observation: str
    advice: str = ""
    status: Status = "ok"


ok, warning, problem = Finding, partial(Finding, status="warning"), partial(Finding, status="problem")


def cores(usable: int, allowed: float | None, ranks: int) -> Finding:
    """Judge the `usable` cores by affinity; a container's quota limits them to the time of `allowed` cores."""
    name, observation = "cores", f"{usable} for {count_of(ranks, 'process')}"
    if allowed is not None and allowed < usable:
        advice = "give the container all its cores (docker run without --cpus), or pin them with --cpuset-cpus"
        return warning(name, f"{observation}, but the container is limited to the time of {allowed:g}", advice)
    if usable < _CORES_A_RANK * ranks:
        advice = f"use {_CORES_A_RANK} per process so that loading keeps up; smaller files and dataloader=ffcv help"
        return warning(name, observation, advice)
    return ok(name, observation)


def memory(usable: HostMemory, need: int) -> Finding:
    """Judge the memory of the machine or its control group against the bytes that the processes of a run take."""
    of = f"{decimal(usable.total)} of {usable.limit}"
    name, observation = "memory", f"{decimal(usable.available)} free of {of}; a run takes about {decimal(need)}"
    if usable.available < need:
        return warning(name, observation, "reduce dataloader.workers or dataloader.prefetch, or end other programs")
    return ok(name, observation)


def shared_memory(free: int | None, need: int) -> Finding:
    """Judge /dev/shm, through which loader workers pass batches; a full one ends a run with a bus error."""
    name = "shared memory"
    if free is None:
        return warning(name, "no /dev/shm", "mount it: loader workers pass batches through it")
    observation = f"{decimal(free)} free in /dev/shm, {decimal(need)} needed"
    if free < need:
        return problem(name, observation, "docker run --ipc=host (or --shm-size), or reduce dataloader.workers")
    return ok(name, observation)


def disk(free: int, writable: bool, runs: Path) -> Finding:
    name, observation = "disk", f"{decimal(free)} free for {runs}"
    if not writable:
        return problem(name, f"{runs} is not writable", "set runs=FOLDER, or change the folder's permissions")
    if free < _TWO_CHECKPOINTS:
        need = decimal(_TWO_CHECKPOINTS)
        return warning(name, observation, f"checkpoints may need {need}; free space or set runs=FOLDER")
    return ok(name, observation)


def examine_machine(ranks: int, need: int, batches: int, runs: Path) -> list[Finding]:
    """Check this machine for ranks, bytes of their processes and prefetched batches, and a folder for runs."""
    folder = next(path for path in (runs.absolute(), *runs.absolute().parents) if path.is_dir())
    return [
        cores(cores_of_mask(), allowed_cores(), ranks),
        memory(usable_memory(), need),
        shared_memory(free_shared_memory(), batches),
        disk(shutil.disk_usage(folder).free, os.access(folder, os.W_OK), runs),
    ]


def judge_torch(result: ProbeResult) -> Finding:
    if result.values is None:
        return problem("torch", result.error, f"run {how_to_add('--force-reinstall', 'torch', 'torchvision')}")
    return ok("torch", f"{result.values['torch']}, torchvision {version('torchvision')}")


def judge_pillow(version: str) -> Finding:
    simd = "-SIMD" if ".post" in version else ""
    if tuple(map(int, version.split(".")[:2])) >= _SAFE_PILLOW:
        return ok("Pillow", f"Pillow{simd} {version}")
    advice = f"it writes out of bounds on some files; use it for images that you trust, or run {how_to_add('pillow')}"
    return warning("Pillow", f"Pillow{simd} {version}, without the security fixes of 12.3", advice)


def judge_decoder(loader: LoaderConfig) -> Finding:
    """Judge the decoder of JPEGs that `dataloader.decoder` selects."""
    if not isinstance(loader, DecodingLoader):
        return ok("decoder", "none needed")
    others = ", ".join(name for name in DECODERS if name != "ffcv" or find_spec(name))
    try:
        name = installed(loader.decoder)
    except UserError as error:
        (missing,) = error.problems
        return problem("decoder", loader.decoder, missing.message)
    return ok("decoder", f"{name}; installed: {others}")


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
    """Return the GPUs that nvidia-smi lists, or None if it is missing or fails."""
    command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
    try:
        listing = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_gpus(listing.stdout)


def parse_gpus(text: str) -> list[GpuState]:
    """Parse nvidia-smi's rows; its memory is in MiB."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    return [
        GpuState(i, name, driver, _bytes(total), _bytes(used), mig == "Enabled")
        for i, name, driver, total, used, mig in rows
    ]


def judge_gpus(gpus: list[GpuState] | None, cards: int, others: list[str]) -> list[Finding]:
    """Judge the GPUs; `cards` counts NVIDIA cards on the bus, `others` are names of AMD GPUs that torch detects."""
    if not gpus and others:
        advice = "no recipe has been tested on AMD GPUs: compare a short run with one on the CPU"
        return [warning("GPUs", f"{len(others)} x {others[0]}, through ROCm", advice)]
    if not gpus and cards:
        observation = f"{count_of(cards, 'NVIDIA card')} found, but no working driver"
        return [problem("GPUs", observation, "install NVIDIA's driver; in a container: docker run --gpus all")]
    if not gpus:
        return [warning("GPUs", "none", "training on the CPU suits only small images and short runs")]
    observation = f"{len(gpus)} x {gpus[0].name}, {decimal(gpus[0].memory)}"
    if len({gpu.name for gpu in gpus}) > 1:
        different = ", ".join(sorted({gpu.name for gpu in gpus}))
        advice = "the slowest sets the pace of all; select equal ones with CUDA_VISIBLE_DEVICES"
        return [warning("GPUs", f"{len(gpus)} of different models: {different}", advice)]
    if any(gpu.mig for gpu in gpus):
        return [warning("GPUs", f"{observation}, in MIG mode", "a run uses one MIG instance; whole cards are faster")]
    if busy := [gpu for gpu in gpus if gpu.used > _IN_USE]:
        names = ", ".join(f"{gpu.index} ({decimal(gpu.used)} in use)" for gpu in busy)
        advice = "another program uses it (see nvidia-smi); end it, or set CUDA_VISIBLE_DEVICES"
        return [warning("GPUs", f"{observation}; GPU {names}", advice)]
    return [ok("GPUs", observation)]


def judge_driver(result: ProbeResult, gpus: Sequence[GpuState]) -> list[Finding]:
    """Judge NVIDIA's driver against the CUDA of the installed torch."""
    if not gpus:
        return []
    driver, values = gpus[0].driver, result.values or {}
    own, _, _ = driver.partition(".")
    major = str(values.get("cuda") or "").partition(".")[0]
    oldest = locked_torch().drivers.get(int(major or 0), 0)
    works = values.get("gpus") and not values.get("error")  # note: an old one does with CUDA's forward compatibility
    if works or not own.isdigit() or int(own) >= oldest:
        return [ok("driver", driver)]
    remedy = f"install NVIDIA's driver {oldest} or newer (on the host of a container), or torch for an older CUDA"
    return [problem("driver", f"{driver}, but torch's CUDA {values['cuda']} needs {oldest} or newer", remedy)]


def judge_cuda(result: ProbeResult, gpus: list[GpuState]) -> list[Finding]:
    """Judge torch's CUDA and NCCL against the driver and GPUs."""
    values = result.values
    if values is None:
        return []
    seen, error = values["gpus"], values["error"].partition("\n")[0]
    if not (gpus or seen):
        return [ok("CUDA", f"{values['cuda'] or 'none'} in torch, not in use")]
    if values["cuda"] is None and not values["hip"]:
        return [
            problem("CUDA", "torch was built without it", "install torch from the package index, not the CPU build")
        ]
    if not seen:
        remedy = remedy_of_cuda(error) if "802" in error else "check the driver and CUDA_VISIBLE_DEVICES"
        advice = f"{remedy}; CUDA's error: {error or 'none'}"
        return [problem("CUDA", f"torch with CUDA {values['cuda']} detects no GPU", advice)]
    if error:
        return [problem("CUDA", f"a GPU fails: {error}", "run nvidia-smi to see which, or set launch.device=cpu")]
    runtime = f"ROCm {values['hip']}" if values["hip"] else values["cuda"]
    precision = "bfloat16" if values["bf16"] else "float16 only"
    observation = [ok("CUDA", f"{runtime}, torch detects {count_of(len(seen), 'GPU')}, {precision}")]
    if values["nccl"] is None:
        return [*observation, problem("NCCL", "none in torch", "GPUs cannot communicate: install torch for CUDA")]
    return [*observation, ok("NCCL", values["nccl"])]


def judge_nodes(result: ProbeResult, system: Path = SYSTEM) -> list[Finding]:
    """Show the NUMA nodes of the GPUs where these have several."""
    nodes = numa_nodes([gpu.get("address") for gpu in (result.values or {}).get("gpus", [])], system)
    if len({*nodes} - {"", "-1"}) < 2:
        return []
    observation = f"{', '.join(node or 'unknown' for node in nodes)}, GPU by GPU"
    return [ok("NUMA nodes", f"{observation}; launch.numa=on binds each process to the cores of its GPU's node")]


def judge_compiler(value: str, headers: Path | None = None) -> Finding:
    """Judge what Triton needs on GPUs with `compile` on or require: a C compiler and the headers of this Python."""
    headers = headers or Path(sysconfig.get_path("include"))
    chosen = [os.environ["CC"].split()[0]] if os.environ.get("CC", "").strip() else ["cc", "gcc", "clang"]
    compiler = next(filter(None, map(shutil.which, chosen)), None)
    missing = ["no C compiler"] if compiler is None else []
    if not (headers / "Python.h").is_file():
        missing.append(f"no Python.h in {headers}")
    if not missing:
        return ok("compiler", f"{compiler}, with Python.h")
    advice = "for Triton install both, on Debian: apt-get install gcc libpython3-dev; compile=off does not need them"
    return (problem if value == "require" else warning)("compiler", " and ".join(missing), advice)


def _bytes(mib: str) -> int:
    return int(mib) * 2**20 if mib.isdigit() else 0
