"""How many processes a run would have, guessed without torch."""

from __future__ import annotations

import os
from pathlib import Path

from launcher.config.schema import RunConfig


def planned_processes(config: RunConfig) -> int:
    """All processes: of each of `launch.nnodes` machines as many as of the first."""
    return _of_one_machine(config) * config.launch.nnodes


def _of_one_machine(config: RunConfig) -> int:
    """`launch.nproc` if it is a number, else the GPUs of the chosen hardware, else the GPUs here, else one."""
    if config.launch.nproc != "auto":
        return config.launch.nproc
    if config.launch.device == "cpu":
        return 1
    return config.hardware.gpus or _gpus_here() or 1


def _gpus_here() -> int:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip() not in ("", "-1")])
    return len(list(Path("/dev").glob("nvidia[0-9]*")))
