"""How many processes a run would have, guessed without torch: what the launch says, the machine planned for, or here."""

from __future__ import annotations

from launcher.config.schema import RunConfig
from launcher.launch.devices import visible_gpus


def planned_processes(config: RunConfig) -> int:
    """`launch.nproc` if it is a number, else the GPUs of the chosen hardware, else the GPUs here, else one."""
    if config.launch.nproc != "auto":
        return config.launch.nproc
    if config.launch.device == "cpu":
        return 1
    return config.hardware.gpus or visible_gpus() or 1
