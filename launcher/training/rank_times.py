"""The seconds that each rank needs by itself in a step, the ranks that all others wait for, and waits of all for data.

In a step every rank waits for the slowest one, so the step times of all ranks are equal. Their own seconds differ.
"""

import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

import psutil
from torch import Tensor, nn

# A rank is slow if it lengthens the steps by more than this fraction, in so many intervals in a row.
SLOWER, INTERVALS = 0.15, 2
# Of training in an interval; in less, other programs of the machine decide.
LEAST_SECONDS = 5.0
# Times of the excess of compute that the excess of loading must be to blame the disk.
_MUCH = 4
# Bytes per second above which a disk is in use.
_READING = 1e6
UNKNOWN = -1.0


class RankSeconds(NamedTuple):
    """Mean seconds of a rank in a step: for its own work on the host, 0 if unknown, and waiting for its data."""

    compute: float
    load: float

    @property
    def own(self) -> float:
        return self.compute + self.load


class OwnTimer:
    """Measures the host's own seconds in a step with several ranks on CPUs, without the waits for other ranks.

    They are from the start of the step to the last gradient, and from the last all-reduce with other ranks to the end.
    """

    def __init__(self) -> None:
        self._start = self._computed = self._met = 0.0
        self._hook: object = None

    def watch(self, parameters: Sequence[nn.Parameter]) -> None:
        """Take the time when the first parameter that learns, the last in the backward pass, has its gradient."""
        if self._hook is not None:
            self._hook.remove()  # type: ignore[attr-defined]
        learning = (parameter for parameter in parameters if parameter.requires_grad)
        self._hook = next(learning).register_post_accumulate_grad_hook(self._note)

    def _note(self, _: Tensor) -> None:
        self._computed = time.perf_counter()

    def start(self) -> None:
        self._start = self._computed = time.perf_counter()

    def met(self) -> None:
        """Note the end of the step's last all-reduce with the other ranks."""
        self._met = time.perf_counter()

    def seconds(self) -> float:
        """Return the own seconds of the step that ends now."""
        return self._computed - self._start + time.perf_counter() - self._met


class Straggler(NamedTuple):
    """A slow rank: its seconds in a step, the medians of all ranks, and the fraction by which it lengthens steps."""

    rank: int
    seconds: RankSeconds
    median: RankSeconds
    slower: float


class Stragglers:
    """Finds the ranks that are slow in several intervals in a row; each counts once until it recovers.

    Intervals in less than `least` seconds of training are joined.
    """

    def __init__(self, least: float | None = None) -> None:
        self._least = LEAST_SECONDS if least is None else least
        self._in_a_row: dict[int, int] = {}
        self._steps, self._seconds = 0, 0.0
        self._sums: list[RankSeconds] = []

    def add(self, ranks: Sequence[RankSeconds], steps: int, seconds: float) -> list[Straggler]:
        """Return the ranks that have become slow with a log interval of so many steps and seconds.

        ranks: their means in a step; empty without other ranks.
        """
        sums = self._sums or [RankSeconds(0.0, 0.0)] * len(ranks)
        self._sums = [
            RankSeconds(before.compute + steps * one.compute, before.load + steps * one.load)
            for before, one in zip(sums, ranks, strict=True)
        ]
        self._steps, self._seconds = self._steps + steps, self._seconds + seconds
        if self._seconds < self._least or not ranks:
            return []
        means = [RankSeconds(one.compute / self._steps, one.load / self._steps) for one in self._sums]
        step_seconds, self._steps, self._seconds, self._sums = self._seconds / self._steps, 0, 0.0, []
        return self._judged(means, step_seconds)

    def _judged(self, ranks: Sequence[RankSeconds], step_seconds: float) -> list[Straggler]:
        # note: of two ranks the lower one is the median, which otherwise would be half way to the slow one
        median = RankSeconds(*(statistics.median_low(values) for values in zip(*ranks, strict=True)))
        own = statistics.median_low(rank.own for rank in ranks)
        lost = [max(0.0, rank.own - own) for rank in ranks]
        slower = [one / max(step_seconds - one, 1e-9) for one in lost]
        self._in_a_row = {one: self._in_a_row.get(one, 0) + 1 for one, share in enumerate(slower) if share > SLOWER}
        new = [one for one, count in self._in_a_row.items() if count == INTERVALS]
        return [Straggler(one, ranks[one], median, slower[one]) for one in new]


class DataWaits:
    """Finds that training waits for its data in several intervals in a row; counts once until it recovers."""

    def __init__(self) -> None:
        self._in_a_row = 0
        self._seconds = self._waited = 0.0

    def add(self, seconds: float, waited: float) -> float | None:
        """Return the share of the steps that waits, if it has become large with a log interval.

        waited: seconds of the median rank in the interval. Intervals in less than `LEAST_SECONDS` are joined.
        """
        self._seconds, self._waited = self._seconds + seconds, self._waited + waited
        if self._seconds < LEAST_SECONDS:
            return None
        share = self._waited / self._seconds
        self._seconds = self._waited = 0.0
        self._in_a_row = self._in_a_row + 1 if share > SLOWER else 0
        return share if self._in_a_row == INTERVALS else None


class DiskRate:
    """What the disks of this machine read, without file systems over the network."""

    def __init__(self) -> None:
        self._read, self._at = _bytes_read(), time.perf_counter()

    def take(self) -> float:
        """Return the bytes per second since the last call; UNKNOWN where the system does not count them."""
        (before, since), (self._read, self._at) = (self._read, self._at), (_bytes_read(), time.perf_counter())
        if before is None or self._read is None:
            return UNKNOWN
        return max(0.0, (self._read - before) / max(self._at - since, 1e-9))


def _bytes_read() -> int | None:
    try:
        counters = psutil.disk_io_counters()
    # note: some containers hide the disks, in a form that psutil does not parse
    except (OSError, ValueError, NotImplementedError):
        return None
    return None if counters is None else int(counters.read_bytes)


def waits_line(share: float, host: str, disk: float) -> str:
    """Return a line on training that waits for its data, with what the disks of the slowest rank's host read."""
    evidence = ""
    if disk >= _READING:
        evidence = f"the disks of {host} read {disk / 1e6:,.0f} MB/s, so its memory may not hold the data; "
    elif disk >= 0:
        evidence = f"the disks of {host} read nothing, so workers or a file system over the network are the limit; "
    return f"training waits for its data {share:.0%} of the time; {evidence}find what to change by train diagnose"


def advice(slow: Straggler, host: str, disk: float = UNKNOWN) -> str:
    """Return a line on a slow rank: where it is, the evidence with bytes/s of its disks, and what to do."""
    seconds, median = slow.seconds, slow.median
    # note: other programs slow steps and data, a disk only the data
    by_load = seconds.load - median.load > _MUCH * (seconds.compute - median.compute)
    remedy = f"check {host} for other programs (top), throttling and memory errors (nvidia-smi -q)"
    if by_load:
        reads = f", which reads {disk / 1e6:,.0f} MB/s" if disk >= 0 else ""
        remedy = f"check the disk of {host}{reads} (iostat -x), or copy the images to a local one"
    steps, data = _beside(seconds.compute, median.compute), _beside(seconds.load, median.load)
    evidence = f"its steps take {steps}, its data {data}"
    return f"rank {slow.rank} on {host} slows all ranks by {slow.slower:.0%}: {evidence}; {remedy}"


def _beside(seconds: float, median: float) -> str:
    return f"{1000 * seconds:,.0f} ms (median {1000 * median:,.0f} ms)"
