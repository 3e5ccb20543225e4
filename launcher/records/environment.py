"""Record the environment of a run: package versions, hardware, source."""

import importlib.metadata
import json
import platform
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil

from launcher.compute.probe import processor, usable_cores
from launcher.credentials import redacted_words
from launcher.files import atomic
from launcher.version import __version__


def write_environment(path: Path, command: Sequence[str], gpus: Sequence[str]) -> None:
    """Write versions, processor, memory, GPUs, the source's commit and the command line as JSON, atomically."""
    facts = {
        "version": __version__,
        "command": redacted_words(command),
        "python": platform.python_version(),
        "system": platform.platform(),
        "host": socket.gethostname(),
        "packages": {package.name: package.version for package in importlib.metadata.distributions()},
        "cpu": processor("model name") or platform.processor(),
        "cores": usable_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": gpus,
        "commit": _commit(),
    }
    atomic.write_text(path, json.dumps(facts, indent=2) + "\n")


def _commit() -> str | None:
    """Return the git commit of the launcher's own source, with `+` if it has uncommitted changes."""
    source = Path(__file__).resolve().parent
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=40", "--exclude=*"],
            cwd=source, capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip() or None
