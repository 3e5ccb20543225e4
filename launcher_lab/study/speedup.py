"""Compare two curves: speed-up at equal quality, gain at equal cost, confidence intervals, Pareto front."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from launcher_lab.study.curves import Cost, Curve, CurvePoint, StudySetting

Floats = NDArray[np.float64]

RESAMPLES = 4000
CONFIDENCE = 0.95
# Maximum fraction of resamples outside the measured range for a p-value.
_OUT_OF_RANGE = 0.05
_SEED = 0  # of the resampling, so that intervals are reproducible


@dataclass(frozen=True)
class BootstrapEstimate:
    """A value with its confidence interval; an end outside the measured range is None.

    With too few seeds for an interval, `low`, `high` and `p` are None and `note` has the reason.
    """

    value: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    note: str = ""

    def interval(self, form: str) -> str:
        """Format both ends; empty without an interval."""
        if (self.low, self.high) == (None, None):
            return ""
        return " to ".join("out of range" if end is None else form.format(end) for end in (self.low, self.high))


@dataclass(frozen=True)
class Comparison:
    """The comparison of a curve with the baseline, at one quality or one cost.

    `value` is the speed-up (baseline's cost / this cost) or the gain in percentage points. Outside the measured range
    it is None with a `reason`; `bound` is then a lower bound of the speed-up, if it is above 1.
    """

    setting: StudySetting
    kind: str  # "equal quality" or "equal cost"
    curve: str
    baseline: str
    at: float  # percent, or the cost in its unit
    value: BootstrapEstimate | None = None
    baseline_cost: float | None = None
    cost: float | None = None
    baseline_quality: float | None = None
    quality: float | None = None
    reason: str = ""
    bound: float | None = None


def at_equal_quality(curve: Curve, baseline: Curve, axis: Cost, quality: float | CurvePoint) -> Comparison:
    """Return the speed-up of a curve over the baseline at a quality in percent, or that of a baseline's point.

    The quality of a point is resampled too.
    """
    ours, theirs = curve.on(axis), baseline.on(axis)
    anchor, target = (quality, quality.quality) if isinstance(quality, CurvePoint) else (None, quality)
    cost = _cost(ours, axis, target)
    baseline_cost = (anchor and anchor.cost(axis)) or _cost(theirs, axis, target)
    blank = Comparison(curve.setting, "equal quality", curve.name, baseline.name, target)
    reasons = [
        _unmeasured_quality(name, points, axis, at)
        for name, points, at in ((curve.name, ours, cost), (baseline.name, theirs, baseline_cost))
    ]
    if any(reasons):
        return replace(blank, reason="; ".join(filter(None, reasons)), bound=_bound(ours, axis, cost, baseline_cost))
    generator = np.random.default_rng(_SEED)
    costs, qualities = resample(theirs, axis, generator)
    if anchor is not None:
        baseline_costs, targets = (values[:, theirs.index(anchor)] for values in (costs, qualities))
    else:
        baseline_costs, targets = cost_at(costs, qualities, target), np.full(len(costs), target)
    with np.errstate(divide="ignore", invalid="ignore"):
        resampled = np.log(baseline_costs) - np.log(cost_at(*resample(ours, axis, generator), targets))
    used = [*_around_quality(ours, target), *([anchor] if anchor else _around_quality(theirs, target))]
    log_ratio = estimate(math.log(baseline_cost / cost), _known_side(resampled), fewest_seeds=_fewest(used))
    low, high = (None if end is None else math.exp(end) for end in (log_ratio.low, log_ratio.high))
    value = BootstrapEstimate(baseline_cost / cost, low, high, log_ratio.p, log_ratio.note)
    return replace(blank, value=value, baseline_cost=baseline_cost, cost=cost)


def at_equal_cost(curve: Curve, baseline: Curve, axis: Cost, cost: float | CurvePoint) -> Comparison:
    """Return the gain of a curve over the baseline in percentage points, at a cost or that of a baseline's point."""
    ours, theirs = curve.on(axis), baseline.on(axis)
    anchor, known = (cost, cost.cost(axis)) if isinstance(cost, CurvePoint) else (None, cost)
    target = math.nan if known is None else known
    quality = _quality(ours, axis, target)
    baseline_quality = _quality(theirs, axis, target) if anchor is None else anchor.quality
    blank = Comparison(curve.setting, "equal cost", curve.name, baseline.name, target)
    reasons = [
        _unmeasured_cost(name, points, axis)
        for name, points, at in ((curve.name, ours, quality), (baseline.name, theirs, baseline_quality))
        if math.isinf(at) or not points
    ]
    if reasons:
        return replace(blank, reason="; ".join(reasons))
    generator = np.random.default_rng(_SEED)
    costs, qualities = resample(theirs, axis, generator)
    if anchor is not None:
        budgets, baseline_qualities = (values[:, theirs.index(anchor)] for values in (costs, qualities))
    else:
        baseline_qualities, budgets = quality_at(costs, qualities, target), np.full(len(costs), target)
    with np.errstate(invalid="ignore"):
        resampled = quality_at(*resample(ours, axis, generator), budgets) - baseline_qualities
    used = [*_around_cost(ours, axis, target), *([anchor] if anchor else _around_cost(theirs, axis, target))]
    value = estimate(quality - baseline_quality, _known_side(resampled), fewest_seeds=_fewest(used))
    return replace(blank, value=value, baseline_quality=baseline_quality, quality=quality)


def _known_side(resampled: Floats) -> Floats:
    """Replace differences where both curves are outside their range (NaN) by 0."""
    return np.where(np.isnan(resampled), 0.0, resampled)


def _arrays(points: Sequence[CurvePoint], axis: Cost) -> tuple[Floats, Floats]:
    return np.array([p.cost(axis) for p in points], float), np.array([p.quality for p in points], float)


def _cost(points: Sequence[CurvePoint], axis: Cost, quality: float) -> float:
    return float(cost_at(*_arrays(points, axis), quality)) if points else math.nan


def _quality(points: Sequence[CurvePoint], axis: Cost, cost: float) -> float:
    return float(quality_at(*_arrays(points, axis), cost)) if points else math.inf


def _unmeasured_quality(name: str, points: Sequence[CurvePoint], axis: Cost, cost: float) -> str | None:
    if not points:
        return f"{name} has no {axis}"
    if cost == 0.0:
        return f"{name} has no point this low; its cheapest has {points[0].quality:.2f} %"
    if math.isinf(cost):
        return f"{name} has no point this high; its best has {max(p.quality for p in points):.2f} %"
    return None


def _unmeasured_cost(name: str, points: Sequence[CurvePoint], axis: Cost) -> str:
    if not points:
        return f"{name} has no {axis}"
    low, high = points[0].cost(axis), points[-1].cost(axis)
    return f"{name} was measured only from {low:.4g} to {high:.4g}"


def _bound(ours: Sequence[CurvePoint], axis: Cost, cost: float, baseline_cost: float) -> float | None:
    """Return a lower bound of the speed-up if the cheapest point already exceeds the quality; None if it is below 1."""
    if cost != 0.0 or not 0.0 < baseline_cost < math.inf:
        return None
    cheapest = ours[0].cost(axis)
    assert cheapest is not None
    return baseline_cost / cheapest if baseline_cost > cheapest else None


def _around_quality(points: Sequence[CurvePoint], quality: float) -> list[CurvePoint]:
    """Return the point of a quality, or the two between which the curve first reaches it."""
    if points[0].quality == quality:
        return [points[0]]
    low, high = next((a, b) for a, b in pairwise(points) if a.quality < quality <= b.quality)
    return [high] if high.quality == quality else [low, high]


def _around_cost(points: Sequence[CurvePoint], axis: Cost, cost: float) -> list[CurvePoint]:
    """Return the points of a cost, or the two around it."""
    exact = [p for p in points if p.cost(axis) == cost]
    below = [p for p in points if (p.cost(axis) or 0.0) < cost]
    return exact or [below[-1], points[len(below)]]


def _fewest(points: Sequence[CurvePoint]) -> int:
    return min(len(p.top1) for p in points)


def cost_at(costs: Floats, qualities: Floats, quality: Floats | float) -> Floats:
    """Return the lowest cost at which each curve reaches a quality, shape (...).

    0 if its cheapest point is better, +inf if no point reaches it.
    """
    costs, qualities = np.broadcast_arrays(np.asarray(costs, float), np.asarray(qualities, float))
    target = np.broadcast_to(np.asarray(quality, float), costs.shape[:-1])
    lowest = np.full(costs.shape[:-1], np.inf)
    # note: from the most expensive segment to the cheapest, so that the first crossing wins
    for left in range(costs.shape[-1] - 2, -1, -1):
        low, high = qualities[..., left], qualities[..., left + 1]
        crosses = (low < target) & (target <= high)
        fraction = np.divide(target - low, high - low, out=np.ones_like(low), where=crosses)
        log_cost = (1 - fraction) * np.log(costs[..., left]) + fraction * np.log(costs[..., left + 1])
        # note: a measured point keeps its exact cost, without the logarithm's rounding
        at_point = crosses & (fraction == 1)
        lowest = np.where(crosses, np.where(at_point, costs[..., left + 1], np.exp(log_cost)), lowest)
    first = qualities[..., 0]
    return np.where(first == target, costs[..., 0], np.where(first > target, 0.0, lowest))


def quality_at(costs: Floats, qualities: Floats, cost: Floats | float) -> Floats:
    """Return each curve's quality at a cost, shape (...); -inf below its cheapest point, +inf above its last."""
    costs, qualities = np.broadcast_arrays(np.asarray(costs, float), np.asarray(qualities, float))
    target = np.broadcast_to(np.asarray(cost, float), costs.shape[:-1])
    quality = np.where(target < costs[..., 0], -np.inf, np.inf)
    for left in range(costs.shape[-1] - 1):
        low, high = costs[..., left], costs[..., left + 1]
        inside = (low <= target) & (target <= high) & (low < high)
        fraction = np.divide(np.log(target / low), np.log(high / low), out=np.zeros_like(low), where=inside)
        value = (1 - fraction) * qualities[..., left] + fraction * qualities[..., left + 1]
        quality = np.where(inside, value, quality)
    # note: a measured cost keeps its exact quality, the best of several points
    for point in range(costs.shape[-1]):
        exact = costs[..., point] == target
        better = np.isinf(quality) | (qualities[..., point] > quality)
        quality = np.where(exact & better, qualities[..., point], quality)
    return quality


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the indices of the (cost, quality) points on the front, cheapest first.

    A point is dominated if another one has at most its cost and at least its quality; equal points stay on the front.
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
    """Return costs and qualities of resampled curves, each of shape (RESAMPLES, points).

    Each point draws seeds with replacement, cost and quality together. Deviations are scaled by sqrt(n / (n - 1)), so
    that the spread of the resampled mean is unbiased for few seeds (Davison & Hinkley 1997, 2.7).
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
    """Return the percentile interval of a difference, and its p-value against 0.

    The p-value is two-sided, by Student's t with the bootstrap's standard error and `fewest_seeds` - 1 degrees of
    freedom; resampled values may be infinite outside a curve's measured range.
    """
    if fewest_seeds < 2:
        return BootstrapEstimate(value, note="an interval needs at least two seeds per point")
    # note: no interpolation, since values may be infinite
    low, high = np.quantile(resampled, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], method="nearest")
    inside = resampled[np.isfinite(resampled)]
    p, note, outside = None, "", 1 - len(inside) / len(resampled)
    if outside > _OUT_OF_RANGE:
        note = f"no p-value: {outside:.0%} of the resamples are outside the measured range"
    else:
        from scipy.special import stdtr  # note: a slow import

        error = float(inside.std(ddof=1))
        t = value / error if error else math.inf
        p = 1.0 if value == 0 else float(2 * stdtr(fewest_seeds - 1, -abs(t)))
    low, high = (float(end) if math.isfinite(end) else None for end in (low, high))
    return BootstrapEstimate(value, low, high, p, note)
