"""Asking a command to stop: a run's launcher passes the first signal on to the ranks, a second Ctrl-C kills them."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

from launcher.errors import INTERRUPTED, TERMINATED

# note: a wrapper may forward the same Ctrl-C that the terminal has sent already
_SAME_CTRL_C = 0.3  # seconds
_ASKING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


@dataclass
class StopRequest:
    """The signal that asked this run to stop, once one has, and whether its ranks got no time to save."""

    number: signal.Signals | None = None
    time: float = 0.0
    at_once: bool = False

    @property
    def asked(self) -> bool:
        return self.number is not None or self.at_once

    @property
    def exit_code(self) -> int:
        return INTERRUPTED if self.number == signal.SIGINT else TERMINATED

    def explains(self, exit_code: int) -> bool:
        """Whether a rank ended like this because it was killed, or asked to stop before it was listening."""
        return self.at_once or (self.asked and exit_code == -signal.SIGTERM)


class Stoppable(Protocol):
    """The ranks, as far as a signal concerns them."""

    def send(self, number: signal.Signals) -> None: ...

    def kill(self) -> None: ...


class Stopped(Exception):
    """Work has ended between two of its parts, as it was asked to."""


@contextmanager
def stop_noted(request: StopRequest) -> Iterator[None]:
    """Note the first stop signal for work that looks at `request` between its parts; a second one acts as ever."""
    before = _handlers()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def handle(number: int, frame: FrameType | None) -> None:
        request.number = signal.Signals(number)
        restore()

    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        restore()


@contextmanager
def stop_requests(request: StopRequest, ranks: Stoppable, say: Callable[[str], None]) -> Iterator[None]:
    """Take over the stop signals; `request` tells afterwards what came."""

    def handle(number: int, frame: FrameType | None) -> None:
        if request.number is None:
            request.number, request.time = signal.Signals(number), time.monotonic()
            say("stopping: the ranks finish their step and save; Ctrl-C again stops at once")
            ranks.send(signal.SIGTERM)
        elif number == signal.SIGINT and time.monotonic() - request.time > _SAME_CTRL_C:
            request.at_once = True
            ranks.kill()

    before = _handlers()
    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _handlers() -> dict[signal.Signals, Any]:
    """What now handles each signal that asks to stop."""
    handlers = {number: signal.getsignal(number) for number in _ASKING}
    # note: nohup ignores SIGHUP so that the run outlives the terminal
    if handlers[signal.SIGHUP] == signal.SIG_IGN:
        del handlers[signal.SIGHUP]
    return handlers
