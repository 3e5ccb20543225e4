"""Build the simulated device where a C++ compiler is, once for each content of its source and version of torch."""

import fcntl
import hashlib
import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path
from types import ModuleType

SOURCES = Path(__file__).with_name("device")
BUILDS = Path(__file__).resolve().parents[2] / "build" / "simulated_gpu"
COMPILER = "g++"
NAME = "simulated_device"


@cache
def why_not() -> str:
    """Return why the device cannot be built here; empty if it can."""
    if sys.platform != "linux" or not shutil.which(COMPILER):
        return f"needs {COMPILER} on Linux"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "needs Python.h (python3-dev)"
    return ""


def build() -> Path:
    """Return the compiled module; several processes may call this at once."""
    import torch
    from torch.utils.cpp_extension import include_paths, library_paths

    files = sorted(SOURCES.iterdir())
    digest = hashlib.sha256(f"{torch.__version__} {sys.version}".encode())
    for file in files:
        digest.update(file.read_bytes())
    module = BUILDS / digest.hexdigest()[:16] / f"{NAME}.so"
    module.parent.mkdir(parents=True, exist_ok=True)
    with (module.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not module.exists():
            includes = [f"-isystem{path}" for path in (*include_paths(), sysconfig.get_path("include"))]
            libraries = [f"-L{path}" for path in library_paths()]
            libraries += [f"-l{name}" for name in ("c10", "torch_cpu", "torch", "torch_python")]
            unfinished = module.with_suffix(".unfinished")
            options = ["-shared", "-fPIC", "-std=c++20", "-O0", "-w", f"-DTORCH_EXTENSION_NAME={NAME}"]
            command = [COMPILER, *options, *includes, str(SOURCES / "device.cpp"), "-o", str(unfinished), *libraries]
            subprocess.run(command, check=True)
            unfinished.rename(module)
    return module


def load() -> ModuleType:
    """Import the compiled module."""
    spec = importlib.util.spec_from_file_location(NAME, build())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
