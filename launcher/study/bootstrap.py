"""Resampling the seeds of a curve, for intervals and p-values of what is read from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from launcher.study.curves import Cost, Point
from launcher.study.interpolation import Floats

RESAMPLES = 4000
CONFIDENCE = 0.95
# Share of resamples that may leave the measured range before a p-value is refused.
_OUT_OF_RANGE = 0.05


@dataclass(frozen=True)
class Estimate:
    """A value with its interval; an end is None where the interval leaves the measured range.

    `low`, `high` and `p` are all None without seeds enough for an interval; `note` says why one is missing.
    """

    value: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    note: str = ""


def resample(points: Sequence[Point], axis: Cost, generator: np.random.Generator) -> tuple[Floats, Floats]:
    """Costs and qualities of resampled curves, each of shape (RESAMPLES, points).

    At each point whole seeds are drawn with replacement, cost and quality together. Deviations are widened by
    sqrt(n / (n - 1)), so that the spread of the resampled mean is unbiased for few seeds (Davison & Hinkley 1997, 2.7).
    """
    costs, qualities = np.empty((RESAMPLES, len(points))), np.empty((RESAMPLES, len(points)))
    for column, point in enumerate(points):
        cost, top1 = np.array(point.costs[axis]), np.array(point.top1)
        count = len(top1)
        widen = math.sqrt(count / (count - 1)) if count > 1 else 0.0
        drawn = generator.integers(count, size=(RESAMPLES, count))
        logs = np.log(cost)
        costs[:, column] = cost.mean() * np.exp(widen * (logs[drawn].mean(axis=1) - logs.mean()))
        qualities[:, column] = top1.mean() + widen * (top1[drawn].mean(axis=1) - top1.mean())
    return costs, qualities


def estimate(value: float, resampled: Floats, *, fewest_seeds: int) -> Estimate:
    """The percentile interval of a difference, and its p-value against none.

    The p-value is two-sided, of Student's t with the bootstrap's standard error and `fewest_seeds` - 1 degrees of
    freedom; resampled values may be infinite where a curve left its measured range.
    """
    if fewest_seeds < 2:
        return Estimate(value, note="an interval needs two seeds or more at each point")
    # note: ordered values, not interpolated ones: between a number and infinity there is nothing
    low, high = np.quantile(resampled, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], method="nearest")
    inside = resampled[np.isfinite(resampled)]
    p, note = None, ""
    if 1 - len(inside) / len(resampled) > _OUT_OF_RANGE:
        note = f"no p-value: {1 - len(inside) / len(resampled):.0%} of the resamples leave the measured range"
    else:
        from scipy.special import stdtr  # note: a quarter of a second of import

        error = float(inside.std(ddof=1))
        t = value / error if error else math.inf
        p = 1.0 if value == 0 else float(2 * stdtr(fewest_seeds - 1, -abs(t)))
    return Estimate(value, _measured(low), _measured(high), p, note)


def _measured(end: float) -> float | None:
    return float(end) if math.isfinite(end) else None
