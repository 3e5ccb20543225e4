"""Asking a run to stop: the launcher passes the request on, the ranks agree on the step after which they do."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class StopFlag:
    """Set by SIGTERM or SIGUSR1 in a rank; `agreed` tells once all ranks know of it."""

    def __init__(self) -> None:
        self.asked = False
        self._pending: tuple[Any, Any] | None = None

    def install(self) -> None:
        """Take over the signals; a terminal's Ctrl-C is the launcher's to handle, which asks with SIGTERM."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._set)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _set(self, number: int, frame: FrameType | None) -> None:
        self.asked = True

    def agreed(self) -> bool:
        """Called by every rank after every step: True on all ranks at the same step, one step after any was asked.

        The flags are joined on the CPU while the next step runs, so asking costs no wait.
        """
        import torch
        import torch.distributed as dist

        if not dist.is_initialized() or dist.get_world_size() == 1:
            return self.asked
        stop = False
        if self._pending is not None:
            work, flag = self._pending
            work.wait()
            stop = bool(flag.item())
        flag = torch.tensor([int(self.asked)])
        self._pending = (dist.all_reduce(flag, op=dist.ReduceOp.MAX, async_op=True), flag)
        return stop


# This process's flag: installed before anything slow is imported, so that an early signal is not lost.
STOP = StopFlag()
