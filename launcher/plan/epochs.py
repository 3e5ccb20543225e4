"""Where the epochs of a run start, in steps: at equal distances, unless an algorithm shortens some."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from launcher.counts import count_of


def dilated_epochs(epochs: int, dilate: float) -> int:
    """Return a run's epochs after dilation, rounded, at least one."""
    return max(1, round(epochs * dilate))


@dataclass(frozen=True)
class EpochSteps:
    """The steps of a run's epochs.

    full: steps of an epoch that reads all samples. starts: first steps of all epochs and the end of the run,
    [epochs + 1]; empty if all epochs are full.
    """

    epochs: int
    full: int
    starts: tuple[int, ...] = ()

    @classmethod
    def of(cls, epochs: int, full: int, fractions: Sequence[Callable[[int], float]]) -> EpochSteps:
        """Return the epochs that read the least of the fractions of the samples, rounded up to whole batches."""
        if not fractions or not full:
            return cls(epochs, full)
        # note: the tolerance keeps 0.9 of 10 steps at 9
        lengths = (max(1, math.ceil(min(of(epoch) for of in fractions) * full - 1e-9)) for epoch in range(epochs))
        return cls(epochs, full, tuple(accumulate(lengths, initial=0)))

    @property
    def total(self) -> int:
        """The steps of the run."""
        return self.first(self.epochs)

    def first(self, epoch: int) -> int:
        """Return the first step of an epoch; that of the one after the last is the end of the run."""
        if not self.starts:
            return epoch * self.full
        return self.starts[min(epoch, self.epochs)] + max(0, epoch - self.epochs) * self.full

    def length(self, epoch: int) -> int:
        """Return the steps of an epoch."""
        return self.first(epoch + 1) - self.first(epoch)

    @property
    def shortest(self) -> int:
        """The steps of the shortest epoch."""
        return min(map(self.length, range(self.epochs))) if self.starts else self.full

    def __str__(self) -> str:
        longest = max(map(self.length, range(self.epochs))) if self.starts else self.full
        return f"{self.shortest:,} to {count_of(longest, 'step')}" if self.starts else count_of(longest, "step")

    def place(self, step: int) -> tuple[int, int]:
        """Return the epoch of a step, and its place there; the end of the run is the first step of another epoch."""
        if not self.starts or step >= self.starts[-1]:
            epoch, place = divmod(step - self.total, self.full) if self.starts else divmod(step, self.full)
            return (self.epochs + epoch if self.starts else epoch), place
        epoch = bisect_right(self.starts, step) - 1
        return epoch, step - self.starts[epoch]

    def before(self, step: int) -> float:
        """Return how many epochs, with the fraction of the last, are complete before a step."""
        epoch, place = self.place(step)
        return epoch + place / self.length(epoch) if self.starts else step / self.full

    def of_epochs(self, epochs: float) -> int:
        """Return the steps of the first epochs of the run, and of the fraction of another one, rounded."""
        if not self.starts:
            return round(epochs * self.full)
        whole = int(epochs)
        return self.first(whole) + round((epochs - whole) * self.length(whole))

    def is_due(self, step: int, epochs: float) -> bool:
        """Return whether an event that occurs every so many epochs is due after `step` steps."""
        return step > 0 and math.floor(self.before(step) / epochs) > math.floor(self.before(step - 1) / epochs)
