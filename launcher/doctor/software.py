"""Python, torch with its CUDA and NCCL, Pillow and FFCV; what is slow or may crash is asked in a process of its own."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

from launcher.doctor.finding import Finding, ok, problem, warning
from launcher.doctor.gpus import Gpu
from launcher.probe import TORCH, Answer, ask, lacking_kernels

_FFCV = """
import json, ffcv.loader, ffcv.writer
from importlib.metadata import version
print(json.dumps({"ffcv": version("ffcv")}))
"""
# Least driver of a CUDA release (NVIDIA's CUDA compatibility table).
_LEAST_DRIVER = {"11": 450, "12": 525, "13": 580}
_SETUP = "scripts/setup.sh builds it"


def examine_software(gpus: list[Gpu] | None, loader: str) -> Iterator[Finding]:
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


def judge_cuda(answer: Answer, gpus: list[Gpu]) -> list[Finding]:
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


def _driver_advice(cuda: str, gpu: Gpu, error: str) -> str:
    least, installed = _LEAST_DRIVER.get(cuda.partition(".")[0]), gpu.driver.partition(".")[0]
    if least is not None and installed.isdigit() and int(installed) < least:
        return f"CUDA {cuda} needs driver {least} or newer, this is {gpu.driver}: update the driver"
    return f"look at CUDA_VISIBLE_DEVICES; CUDA says: {error.partition(chr(10))[0]}"


def _processor_flags() -> set[str]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((set(line.split()) for line in lines if line.startswith("flags")), set())
