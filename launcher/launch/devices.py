"""How many processes a machine gets."""

from __future__ import annotations

from launcher.config.schema import Launch
from launcher.errors import Problem, UserError


def processes(launch: Launch) -> int:
    """One a visible GPU, or what the config says.

    Raises:
        UserError: more processes than GPUs, or GPUs asked for where none is visible.
    """
    gpus = _visible() if launch.device != "cpu" else 0
    if launch.device == "cuda" and not gpus:
        raise UserError(Problem("no GPU is visible; launch.device=cpu trains on the CPU", "launch.device", "cuda"))
    if launch.nproc == "auto":
        return gpus or 1
    if 0 < gpus < launch.nproc:
        visible = "1 GPU is visible" if gpus == 1 else f"{gpus} GPUs are visible"
        message = f"only {visible}; set launch.nproc={gpus}, or launch.device=cpu to train on the CPU"
        raise UserError(Problem(message, "launch.nproc", launch.nproc))
    return launch.nproc


def _visible() -> int:
    import torch

    return torch.cuda.device_count()
