"""Signals that ask a command to stop."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from launcher.errors import INTERRUPTED, TERMINATED

_ASKING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


@dataclass
class StopRequest:
    """The first signal that asked a command to stop, once one has come, and its time in seconds."""

    number: signal.Signals | None = None
    time: float = 0.0

    @property
    def asked(self) -> bool:
        return self.number is not None

    @property
    def exit_code(self) -> int:
        return INTERRUPTED if self.number == signal.SIGINT else TERMINATED

    def note(self, number: signal.Signals) -> None:
        self.number, self.time = number, time.monotonic()


class Stopped(Exception):
    """Work has ended between two of its parts, as it was asked to."""


@contextmanager
def stop_signals(handle: Callable[[signal.Signals], None], *, once: bool = False) -> Iterator[None]:
    """Call `handle` with each signal that asks to stop; with `once` the second one acts as if nobody handled it."""
    before = {number: signal.getsignal(number) for number in _ASKING}
    # note: nohup ignores SIGHUP so that the run outlives the terminal
    if before[signal.SIGHUP] == signal.SIG_IGN:
        del before[signal.SIGHUP]

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def on_signal(number: int, frame: FrameType | None) -> None:
        if once:
            restore()
        handle(signal.Signals(number))

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        restore()
