"""Handle the signals that stop a command, from its first line to its last.

During imports they end the process. Later they raise `StopRequested`, as Ctrl-C raises KeyboardInterrupt, but not
within a function that `defers_stops`; while a run trains, a `StopRequest` records the first one. After the exit code is
set they are ignored.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from launcher.errors import INTERRUPTED, TERMINATED

ALL_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


@dataclass
class StopRequest:
    """The first stop signal, None before it, and its time in seconds."""

    number: int | None = None
    time: float = 0.0

    @property
    def requested(self) -> bool:
        return self.number is not None

    @property
    def exit_code(self) -> int:
        return INTERRUPTED if self.number == signal.SIGINT else TERMINATED

    def note(self, number: int) -> None:
        self.number, self.time = number, time.monotonic()


class StopRequested(KeyboardInterrupt):
    """A stop signal arrived where no checkpoint is needed."""

    def __init__(self, number: int):
        self.exit_code = StopRequest(number).exit_code
        super().__init__(f"stopped by {signal.Signals(number).name}")


def on_stop(handler: Any) -> dict[int, Any]:
    """Set the handler of all stop signals, or signal.SIG_IGN; return the previous handlers."""
    # note: nohup ignores SIGHUP so that the run outlives the terminal
    numbers = [n for n in ALL_STOP_SIGNALS if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in numbers}


def end_now(number: int, frame: FrameType | None) -> None:
    """End this process without cleanup."""
    os.write(2, f"{StopRequested(number)}\n".encode())
    os._exit(StopRequest(number).exit_code)


class _Deferral:
    """Whether stops are deferred, and the signal that arrived meanwhile."""

    active = False
    number: int | None = None


def raise_stop(number: int, frame: FrameType | None) -> None:
    """Raise `StopRequested`, or let the current block that defers stops raise it at its end."""
    if not _Deferral.active:
        raise StopRequested(number)
    _Deferral.number = number


@contextmanager
def defers_stops() -> Iterator[None]:
    """Raise `StopRequested` only after the block, or after the decorated function, which changes several values."""
    _Deferral.active = True
    try:
        yield
    finally:
        _Deferral.active = False
        number, _Deferral.number = _Deferral.number, None
    if number is not None:
        raise StopRequested(number)


@contextmanager
def stop_signals(handle: Callable[[int], None]) -> Iterator[None]:
    """Call `handle` with each stop signal."""
    before = on_stop(lambda number, frame: handle(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Yield a request that records the first stop signal, after which the previous handlers act."""
    request, handlers = StopRequest(), ExitStack()

    def record(number: int) -> None:
        handlers.close()
        request.note(number)

    with handlers:
        handlers.enter_context(stop_signals(record))
        yield request
