"""Metrics of an evaluation, and what ends a run by them: a value to reach, or evaluations without a gain."""

import math
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple


class Metric(NamedTuple):
    """A metric of an evaluation; shares are in [0, 1] and printed in percent.

    name: in records, checkpoints and `target`. title: in text. in_line: whether an evaluation's line has it; `if_other`
    than the primary metric. compares: whether its values can be better or worse. about: what it is.
    """

    name: str
    title: str
    better: Literal["higher", "lower"] = "higher"
    is_share: bool = True
    in_line: Literal["always", "if_other", "never"] = "always"
    compares: bool = True
    about: str = ""

    def is_better(self, value: float, other: float) -> bool:
        """Return whether a value is better than another; False if one is NaN."""
        return value > other if self.better == "higher" else value < other

    def gain(self, value: float, other: float) -> float:
        """Return by how much a value is better than another; NaN if one is NaN."""
        return value - other if self.better == "higher" else other - value

    def best(self, values: Iterable[float | None]) -> float | None:
        """Return the best value, ignoring None; None without a value."""
        choose = max if self.better == "higher" else min
        return choose((value for value in values if value is not None), default=None)

    def text(self, value: float | None, digits: int = 2) -> str:
        """Format a value with its unit."""
        value = math.nan if value is None else value
        return f"{value:.{digits}%}" if self.is_share else f"{value:.{digits + 2}g}"


class Goal(NamedTuple):
    """A metric's value that ends a run: `target=top1:0.759`."""

    metric: Metric
    value: float

    def is_reached(self, metrics: Mapping[str, float | None]) -> bool:
        """Return whether an evaluation's metrics reach the goal."""
        value = metrics.get(self.metric.name)
        return value is not None and (value == self.value or self.metric.is_better(value, self.value))


class Patience(NamedTuple):
    """So many evaluations in a row without a gain of more than `min_delta` in a metric end a run (early stopping)."""

    metric: Metric
    evaluations: int
    min_delta: float

    def is_over(self, history: Iterable[Mapping[str, float | None]]) -> bool:
        """Return whether the last evaluations of a run, all of whose metrics are given in order, have no gain."""
        best, without = -math.inf if self.metric.better == "higher" else math.inf, 0
        for metrics in history:
            value = metrics.get(self.metric.name)
            value = math.nan if value is None else value
            best, without = (value, 0) if self.metric.gain(value, best) > self.min_delta else (best, without + 1)
        return without >= self.evaluations
