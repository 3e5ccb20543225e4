"""Three clocks, as the methodology counts time: training, evaluation and saving, each without the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Clock:
    """Seconds of training, evaluation and saving so far; goes on counting after a resume.

    `synchronize` waits for the device before a clock changes hands, `now` gives seconds.
    """

    def __init__(self, synchronize: Callable[[], None] | None, now: Callable[[], float] = time.perf_counter):
        self._synchronize, self._now = synchronize, now
        self._seconds = {"training": 0.0, "evaluation": 0.0, "saving": 0.0}
        self._running: str | None = None
        self._since = now()

    def start_training(self) -> None:
        self._switch("training")

    def stop(self) -> None:
        self._switch(None)

    @contextmanager
    def evaluation(self) -> Iterator[Callable[[], float]]:
        """Time inside belongs to evaluation; gives a function that tells the seconds spent in it."""
        before = self.seconds("evaluation")
        with self._other("evaluation"):
            yield lambda: self.seconds("evaluation") - before

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Time inside belongs to saving."""
        with self._other("saving"):
            yield

    def seconds(self, clock: str) -> float:
        """Seconds of `training`, `evaluation` or `saving` so far."""
        running = self._now() - self._since if self._running == clock else 0.0
        return self._seconds[clock] + running

    def state_dict(self) -> dict[str, float]:
        return {clock: self.seconds(clock) for clock in self._seconds}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self._seconds = dict(state)
        self._since = self._now()

    @contextmanager
    def _other(self, clock: str) -> Iterator[None]:
        before = self._running
        self._switch(clock)
        try:
            yield
        finally:
            self._switch(before)

    def _switch(self, clock: str | None) -> None:
        if self._synchronize is not None:
            self._synchronize()
        now = self._now()
        if self._running is not None:
            self._seconds[self._running] += now - self._since
        self._running, self._since = clock, now
