"""Curves as numbers: between points, the best of all, and how sure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lab.study.curves import Cost, CurvePoint

Floats = NDArray[np.float64]

RESAMPLES = 4000
CONFIDENCE = 0.95
# Share of resamples that may leave the measured range before a p-value is refused.
_OUT_OF_RANGE = 0.05


@dataclass(frozen=True)
class BootstrapEstimate:
    """A value with its interval; an end is None where the interval leaves the measured range.

    `low`, `high` and `p` are all None without seeds enough for an interval; `note` says why one is missing.
    """

    value: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    note: str = ""


def cost_at(costs: Floats, qualities: Floats, quality: Floats | float) -> Floats:
    """The least cost at which each curve reaches a quality, shape (...).

    0 if its cheapest point is better already, +inf if no point reaches it.
    """
    costs, qualities = np.broadcast_arrays(np.asarray(costs, float), np.asarray(qualities, float))
    wanted = np.broadcast_to(np.asarray(quality, float), costs.shape[:-1])
    found = np.full(costs.shape[:-1], np.inf)
    # note: from the dearest segment to the cheapest, so that the first crossing has the last word
    for left in range(costs.shape[-1] - 2, -1, -1):
        low, high = qualities[..., left], qualities[..., left + 1]
        crosses = (low < wanted) & (wanted <= high)
        part = np.divide(wanted - low, high - low, out=np.ones_like(low), where=crosses)
        log_cost = (1 - part) * np.log(costs[..., left]) + part * np.log(costs[..., left + 1])
        # note: exactly the measured cost at a measured point, not its logarithm's rounding
        at_point = crosses & (part == 1)
        found = np.where(crosses, np.where(at_point, costs[..., left + 1], np.exp(log_cost)), found)
    first = qualities[..., 0]
    return np.where(first == wanted, costs[..., 0], np.where(first > wanted, 0.0, found))


def quality_at(costs: Floats, qualities: Floats, cost: Floats | float) -> Floats:
    """Each curve's quality at a cost, shape (...); -inf below its cheapest point, +inf beyond its dearest."""
    costs, qualities = np.broadcast_arrays(np.asarray(costs, float), np.asarray(qualities, float))
    wanted = np.broadcast_to(np.asarray(cost, float), costs.shape[:-1])
    found = np.where(wanted < costs[..., 0], -np.inf, np.inf)
    for left in range(costs.shape[-1] - 1):
        low, high = costs[..., left], costs[..., left + 1]
        inside = (low <= wanted) & (wanted <= high) & (low < high)
        part = np.divide(np.log(wanted / low), np.log(high / low), out=np.zeros_like(low), where=inside)
        value = (1 - part) * qualities[..., left] + part * qualities[..., left + 1]
        found = np.where(inside, value, found)
    # note: a measured cost gives its measured quality; of points of one cost the best
    for point in range(costs.shape[-1]):
        exact = costs[..., point] == wanted
        better = np.isinf(found) | (qualities[..., point] > found)
        found = np.where(exact & better, qualities[..., point], found)
    return found


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the (cost, quality) points on the front, cheapest first.

    A point is off it if another costs no more and is no worse, and is better in one of them; equal points stay.
    """
    front: list[int] = []
    best = float("-inf")
    for index in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1])):
        quality = points[index][1]
        if quality > best or (front and points[index] == points[front[-1]]):
            front.append(index)
            best = quality
    return front


def resample(points: Sequence[CurvePoint], axis: Cost, generator: np.random.Generator) -> tuple[Floats, Floats]:
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


def estimate(value: float, resampled: Floats, *, fewest_seeds: int) -> BootstrapEstimate:
    """The percentile interval of a difference, and its p-value against none.

    The p-value is two-sided, of Student's t with the bootstrap's standard error and `fewest_seeds` - 1 degrees of
    freedom; resampled values may be infinite where a curve left its measured range.
    """
    if fewest_seeds < 2:
        return BootstrapEstimate(value, note="an interval needs two seeds or more at each point")
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
    return BootstrapEstimate(value, _measured(low), _measured(high), p, note)


def _measured(end: float) -> float | None:
    return float(end) if math.isfinite(end) else None
