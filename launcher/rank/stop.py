"""Asking a run to stop: the launcher passes the request on, the ranks agree on the step after which they do."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


@dataclass(frozen=True)
class Requests:
    """What a rank requests of the run, or any rank does; sent between ranks with a step's own flags, on the device."""

    stop: bool = False
    save: bool = False


NO_REQUESTS = Requests()


class StopFlag:
    """Set by SIGTERM or SIGUSR1 in a rank."""

    def __init__(self) -> None:
        self.asked = False

    def install(self) -> None:
        """Take over the signals; a terminal's Ctrl-C is the launcher's to handle, which asks with SIGTERM."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._set)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _set(self, number: int, frame: FrameType | None) -> None:
        self.asked = True

    def agreed_now(self) -> bool:
        """Whether any rank has been asked already; called by every rank, and waits for all of them."""
        import torch

        from launcher.rank.peers import highest

        return bool(highest(torch.tensor(int(self.asked))))


# This process's flag: installed before anything slow is imported, so that an early signal is not lost.
STOP = StopFlag()
