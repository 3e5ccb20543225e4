"""What is counted while a run trains: seconds on three clocks, and the steps since the last line and in this epoch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from launcher.rank.group import Ranks
from launcher.training.outcome import AsyncRead, StepOutcome


class Clock:
    """Seconds of training, evaluation and saving so far, each without the others; goes on counting after a resume.

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
        """Time inside belongs to evaluation; gives a function that returns the seconds spent in it."""
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
        if clock == self._running:
            return
        if self._synchronize is not None:
            self._synchronize()
        now = self._now()
        if self._running is not None:
            self._seconds[self._running] += now - self._since
        self._running, self._since = clock, now


@dataclass(frozen=True)
class StepMeans:
    """Of some steps: how many, the mean of their finite losses over all ranks, and seconds.

    seconds: on the training clock. waited: for data, of them all. train_seconds: of the run so far.
    """

    steps: int
    loss: float
    seconds: float
    waited: float
    train_seconds: float


@dataclass(frozen=True)
class LateMeans:
    """The steps of a line, whose losses [sum, count], over all ranks, are on their way to the host.

    train_seconds: at their end, or None where a GPU has still to do them.
    """

    steps: int
    waited: float
    losses: AsyncRead
    train_seconds: float | None


class StepMeter:
    """Sums over the steps since it was made or last taken."""

    def __init__(self, ranks: Ranks, clock: Clock):
        self._ranks, self._clock = ranks, clock
        self._train_seconds = clock.seconds("training")
        self._reset()

    def _reset(self) -> None:
        self._losses = torch.zeros(2, device=self._ranks.device)  # their sum, and how many are finite
        self._steps, self._waited = 0, 0.0

    def add(self, outcome: StepOutcome, waited: float) -> None:
        self._losses += outcome.loss_and_count
        self._steps += 1
        self._waited += waited

    def take(self) -> LateMeans:
        """Take the sums and start again; all ranks call this together, and none waits for its device."""
        if self._ranks.world_size > 1:
            dist.all_reduce(self._losses)
        seconds = None if self._losses.is_cuda else self._clock.seconds("training")
        taken = LateMeans(self._steps, self._waited, AsyncRead(self._losses), seconds)
        self._reset()
        return taken

    def read(self, taken: LateMeans) -> StepMeans:
        """The means of what was taken; waits for the device to have made them, and sees by the clock when it has."""
        total, count = taken.losses.read()
        until = self._clock.seconds("training") if taken.train_seconds is None else taken.train_seconds
        since, self._train_seconds = self._train_seconds, until
        loss = total / count if count else float("nan")
        return StepMeans(taken.steps, loss, max(self._train_seconds - since, 1e-9), taken.waited, self._train_seconds)

    def state_dict(self) -> dict[str, Any]:
        """The sums, each rank's loss apart; all ranks call this together."""
        losses = [self._losses]
        if self._ranks.world_size > 1:
            losses = [torch.zeros_like(self._losses) for _ in range(self._ranks.world_size)]
            dist.all_gather(losses, self._losses)
        sums = {"losses": int(self._losses[1]), "steps": self._steps, "waited": self._waited}
        return {**sums, "loss": torch.stack(losses)[:, 0], "train_seconds": self._train_seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back this rank's part; on another number of ranks the first takes all."""
        losses, count = state["loss"].to(self._losses.device), state["losses"]
        same_ranks = len(losses) == self._ranks.world_size
        if not same_ranks:
            losses, count = losses.sum().expand(1), count * len(losses)
        rank = self._ranks.rank if same_ranks else 0
        mine = same_ranks or self._ranks.is_first
        self._losses = torch.stack([losses[rank], losses.new_tensor(count)]) * mine
        self._steps, self._waited = state["steps"], state["waited"]
        self._train_seconds = state["train_seconds"]


class Meters:
    """The steps since the last line, and those of this epoch."""

    def __init__(self, ranks: Ranks, clock: Clock):
        self.line, self.epoch = StepMeter(ranks, clock), StepMeter(ranks, clock)

    def add(self, outcome: StepOutcome, waited: float) -> None:
        self.line.add(outcome, waited)
        self.epoch.add(outcome, waited)

    def state_dict(self) -> dict[str, Any]:
        """All ranks call this together."""
        return {"line": self.line.state_dict(), "epoch": self.epoch.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.line.load_state_dict(state["line"])
        self.epoch.load_state_dict(state["epoch"])
