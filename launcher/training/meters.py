"""Measure steps: the outcome of each, read when later ones are queued, sums over several, and seconds on three clocks.

Training reads values from the device only here.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from launcher.compute.accelerator import has_streams, interface, max_memory, use, widest
from launcher.data.batch import Moment
from launcher.rank.group import Ranks
from launcher.rank.signs import Requests

# Numbers of a rank in an interval: its seconds of waiting for data in a step, and memory and use of its GPU.
_VALUES = 3


class AsyncRead:
    """Copies values from the device to the host, which only waits when it reads them."""

    def __init__(self, values: Tensor):
        self._copied: Any = None
        if has_streams(values.device):
            device = interface(values.device)
            self._values = torch.empty_like(values, device="cpu", pin_memory=True).copy_(values, non_blocking=True)
            # note: a busy wait would take a core that loader workers need
            self._copied = device.Event(blocking=True)
            self._copied.record(device.current_stream(values.device))
        else:
            self._values = values.clone()

    def read(self) -> list[float]:
        """Return the values; waits until the device has computed them, but for no later work."""
        if self._copied is not None:
            self._copied.synchronize()
        values: list[float] = self._values.tolist()
        return values


@dataclass(frozen=True)
class StepReport:
    """The values of a completed step on the host.

    loss: of this rank. finite: whether it and the gradients are finite on all ranks. dropped: whether the step has
    changed nothing. requests: those of any rank at the start of the step.
    """

    loss: float
    finite: bool
    dropped: bool
    requests: Requests


class StepOutcome:
    """A step in the device's queue, whose values are copied to the host asynchronously.

    indices: int64 [B], the samples of this rank. loss_and_count: float32 [2] on the device, their mean loss and 1, or
    both 0 if the step is not finite.
    """

    def __init__(self, moment: Moment, indices: np.ndarray, values: Tensor, keep_steps: Callable[[], object]):
        """values: float32 [6] on the device: loss, gradient norm, and 1 or 0 for whether the step is not finite, is
        dropped, and whether a stop and a checkpoint are requested. keep_steps: stops dropping the steps after this one.
        """
        self.moment, self.indices, self._keep_steps = moment, indices, keep_steps
        self.loss_and_count = torch.stack([values[0], torch.ones_like(values[0])]).masked_fill_(values[2] > 0, 0)
        self.values = AsyncRead(values)

    def report(self) -> StepReport:
        """Return the result of the step; waits for the device to complete it, but for no later work."""
        loss, _, not_finite, dropped, stop, save = self.values.read()
        if not_finite:
            self._keep_steps()
        return StepReport(loss, not not_finite, bool(dropped), Requests(bool(stop), bool(save)))


class Stopwatch:
    """Counts seconds of training, evaluation and saving separately, and continues after a resume.

    `synchronize` waits for the device before the clock changes, `now` returns seconds.
    """

    def __init__(self, synchronize: Callable[[], None] | None, now: Callable[[], float] = time.perf_counter):
        self._synchronize, self._now = synchronize, now
        self._seconds = {"training": 0.0, "evaluation": 0.0, "saving": 0.0}
        self._running: str | None = None
        self._since = now()

    def switch(self, clock: str | None) -> None:
        """Count time from now on as `training`, `evaluation` or `saving`; None stops counting."""
        if clock == self._running:
            return
        if self._synchronize is not None:
            self._synchronize()
        now = self._now()
        if self._running is not None:
            self._seconds[self._running] += now - self._since
        self._running, self._since = clock, now

    @contextmanager
    def counting(self, clock: str) -> Iterator[Callable[[], float]]:
        """Count the time of the context as `clock`; yields a function that returns the seconds spent in it."""
        outer, before = self._running, self.seconds(clock)
        self.switch(clock)
        try:
            yield lambda: self.seconds(clock) - before
        finally:
            self.switch(outer)

    def seconds(self, clock: str) -> float:
        """Return the seconds of `training`, `evaluation` or `saving` so far."""
        running = self._now() - self._since if self._running == clock else 0.0
        return self._seconds[clock] + running

    @property
    def total(self) -> float:
        """Return the seconds of all three so far."""
        return sum(map(self.seconds, self._seconds))

    def state_dict(self) -> dict[str, float]:
        return {clock: self.seconds(clock) for clock in self._seconds}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self._seconds = dict(state)
        self._since = self._now()


@dataclass(frozen=True)
class StepMeans:
    """Several steps: their number, the mean of their finite losses over all ranks, and seconds.

    seconds: of the steps on the training clock. waited: for data. train_seconds: of the run so far. If there are
    several ranks, of each: waits: mean seconds for data in a step; memory: the most bytes on its GPU so far, 0 without
    one; use: the percentage of the last moments in which it computed, -1 if unknown.
    """

    steps: int
    loss: float
    seconds: float
    waited: float
    train_seconds: float
    waits: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    use: list[float] = field(default_factory=list)


class StepMeter:
    """Sums over the steps since it was created or read."""

    def __init__(self, ranks: Ranks, clock: Stopwatch):
        self._ranks, self._clock = ranks, clock
        self._train_seconds = clock.seconds("training")
        self._reset()

    def _reset(self) -> None:
        # sum and number of finite losses; note: in float64 independent of the order of ranks and steps
        device = self._ranks.device
        self._losses = torch.zeros(2, dtype=widest(device), device=device)
        self._steps, self._waited = 0, 0.0

    def add(self, outcome: StepOutcome, waited: float) -> None:
        self._losses += outcome.loss_and_count
        self._steps += 1
        self._waited += waited

    def take(self) -> Callable[[], StepMeans]:
        """Reset the sums and return a function for their means; all ranks call this together, none waits for a device.

        The function waits until the device has completed the steps, and on a GPU reads the clock then.
        """
        sums = self._losses
        if self._ranks.world_size > 1:
            # note: one all-reduce for both
            sums = torch.cat([sums, self._values_of_ranks()])
            dist.all_reduce(sums)
        values, steps, waited = AsyncRead(sums), self._steps, self._waited
        end = None if has_streams(self._losses.device) else self._clock.seconds("training")
        self._reset()

        def means() -> StepMeans:
            total, count, *own = values.read()
            start, self._train_seconds = self._train_seconds, self._clock.seconds("training") if end is None else end
            seconds = max(self._train_seconds - start, 1e-9)
            loss = total / count if count else float("nan")
            waits, memory, used = (own[number::_VALUES] for number in range(_VALUES))
            of_ranks = waits, [*map(int, memory)], used
            return StepMeans(steps, loss, seconds, waited, self._train_seconds, *of_ranks)

        return means

    def _values_of_ranks(self) -> Tensor:
        """Return the values of this rank in its places of [_VALUES * ranks], and 0 in all others."""
        rank, device = self._ranks.rank, self._losses.device
        values = torch.zeros(_VALUES * self._ranks.world_size, dtype=self._losses.dtype)
        steps = max(1, self._steps)
        used = use(device)
        own = [self._waited / steps, max_memory(device) or 0, -1.0 if used is None else used]
        values[_VALUES * rank : _VALUES * (rank + 1)] = torch.tensor(own, dtype=values.dtype)
        return (values.pin_memory() if has_streams(device) else values).to(device, non_blocking=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the sums over all ranks, which call this together."""
        losses = self._losses.clone()
        if self._ranks.world_size > 1:
            dist.all_reduce(losses)
        return {"losses": losses, "steps": self._steps, "waited": self._waited, "train_seconds": self._train_seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the sums on rank 0; they are 0 on the others."""
        self._losses = state["losses"].to(self._losses.device) * self._ranks.is_first
        self._steps, self._waited = state["steps"], state["waited"]
        self._train_seconds = state["train_seconds"]
