"""Asking a run to stop: the launcher passes the request on, the ranks agree on the step after which they do."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from types import FrameType
from typing import Any

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


@dataclass(frozen=True)
class Agreement:
    """What all ranks do after this step."""

    stop: bool
    save: bool


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

    def agreed(self, *, save: bool = False) -> Agreement:
        """Called by every rank after every step: the same on all ranks, one step after any was asked or wants a save.

        The flags are joined on the CPU while the next step runs, so asking costs no wait.
        """
        import torch
        import torch.distributed as dist

        if not dist.is_initialized() or dist.get_world_size() == 1:
            return Agreement(self.asked, save)
        agreement = Agreement(stop=False, save=False)
        if self._pending is not None:
            work, flags = self._pending
            work.wait()
            agreement = Agreement(*map(bool, flags.tolist()))
        flags = torch.tensor([int(self.asked), int(save)])
        self._pending = (dist.all_reduce(flags, op=dist.ReduceOp.MAX, async_op=True), flags)
        return agreement

    def agreed_now(self) -> bool:
        """Whether any rank has been asked already; called by every rank, and waits for all of them."""
        self.agreed()
        return self.agreed().stop


# This process's flag: installed before anything slow is imported, so that an early signal is not lost.
STOP = StopFlag()
