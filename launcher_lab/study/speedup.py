"""Compare two curves: speed-up at equal quality, gain at equal cost, confidence intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

import numpy as np
from numpy.typing import NDArray

from launcher.records.scales import QualityScale
from launcher.results.curve_math import cost_at, quality_at
from launcher.results.curves import Cost, Curve, CurvePoint, StudySetting

Floats = NDArray[np.float64]
# A point in use, and the change of the compared value for that of its relative cost, and of its quality in percent.
Term = tuple[CurvePoint, float, float]

CONFIDENCE = 0.95
# Of each point in use: an interval of two runs a side would contain the true value in 90 to 98 % of cases.
FEWEST_RUNS = 3


@dataclass(frozen=True)
class Interval:
    """A value with its confidence interval and p-value; an end outside the measured range is None.

    `runs` are the fewest runs of a point in use, `p_corrected` is corrected for all comparisons of a table
    (`corrected`). Without an interval `low`, `high` and `p` are None, and `note` has the reason.
    """

    value: float
    runs: int
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_corrected: float | None = None
    note: str = ""

    def interval(self, form: str) -> str:
        """Format both ends; empty without an interval."""
        if (self.low, self.high) == (None, None):
            return ""
        return " to ".join("out of range" if end is None else form.format(end) for end in (self.low, self.high))

    def times(self, sign: int) -> Self:
        """Return the value with another sign; the ends of its interval swap."""
        low, high = (None if end is None else sign * end for end in (self.low, self.high)[::sign])
        return replace(self, value=sign * self.value, low=low, high=high)


@dataclass(frozen=True)
class Comparison:
    """The comparison of a curve with the baseline, at one quality or one cost.

    `value` is the speed-up (baseline's cost / this cost) or the gain in the quality's unit. Outside the measured range
    it is None with a `reason`; `bound` is then a lower bound of the speed-up, if it is above 1.
    """

    setting: StudySetting
    kind: str  # "equal quality" or "equal cost"
    curve: str
    baseline: str
    at: float  # the quality, or the cost in its unit
    unit: str  # of qualities
    value: Interval | None = None
    baseline_cost: float | None = None
    cost: float | None = None
    baseline_quality: float | None = None
    quality: float | None = None
    reason: str = ""
    bound: float | None = None

    def printed(self, scale: QualityScale) -> Self:
        """Return the comparison with the metric's own values as qualities, such as a perplexity."""
        if self.kind == "equal quality":
            return replace(self, at=scale.sign * self.at)
        if self.value is None or self.baseline_quality is None or self.quality is None:
            return self
        ends = (scale.sign * self.baseline_quality, scale.sign * self.quality)
        return replace(self, value=self.value.times(scale.sign), baseline_quality=ends[0], quality=ends[1])


def at_equal_quality(curve: Curve, baseline: Curve, axis: Cost, quality: float | CurvePoint) -> Comparison:
    """Return the speed-up of a curve over the baseline at a quality in percent, or that of a baseline's point.

    The uncertainty of a point's quality counts too.
    """
    ours, theirs = curve.on(axis), baseline.on(axis)
    anchor, target = (quality, quality.quality) if isinstance(quality, CurvePoint) else (None, quality)
    cost = _cost(ours, axis, target)
    baseline_cost = (anchor and anchor.cost(axis)) or _cost(theirs, axis, target)
    blank = Comparison(curve.setting, "equal quality", curve.name, baseline.name, target, curve.metric.unit)
    reasons = [
        _unmeasured_quality(name, points, axis, at, curve.metric)
        for name, points, at in ((curve.name, ours, cost), (baseline.name, theirs, baseline_cost))
    ]
    if any(reasons):
        return replace(blank, reason="; ".join(filter(None, reasons)), bound=_bound(ours, axis, cost, baseline_cost))
    slope, terms = _log_cost_at(ours, axis, target)
    less = [(point, -of_cost, -of_quality) for point, of_cost, of_quality in terms]
    used = [*less, (anchor, 1.0, -slope)] if anchor else [*less, *_log_cost_at(theirs, axis, target)[1]]
    log_ratio = estimate(math.log(baseline_cost / cost), used, axis)
    measured = [(cost, ours, 1)] if anchor else [(cost, ours, 1), (baseline_cost, theirs, -1)]
    return replace(blank, value=_as_ratio(log_ratio, measured, axis), baseline_cost=baseline_cost, cost=cost)


def at_equal_cost(curve: Curve, baseline: Curve, axis: Cost, cost: float | CurvePoint) -> Comparison:
    """Return the gain of a curve over the baseline in percentage points, at a cost or that of a baseline's point."""
    ours, theirs = curve.on(axis), baseline.on(axis)
    anchor, known = (cost, cost.cost(axis)) if isinstance(cost, CurvePoint) else (None, cost)
    target = math.nan if known is None else known
    quality = _quality(ours, axis, target)
    baseline_quality = _quality(theirs, axis, target) if anchor is None else anchor.quality
    blank = Comparison(curve.setting, "equal cost", curve.name, baseline.name, target, curve.metric.unit)
    reasons = [
        _unmeasured_cost(name, points, axis)
        for name, points, at in ((curve.name, ours, quality), (baseline.name, theirs, baseline_quality))
        if math.isinf(at) or not points
    ]
    if reasons:
        return replace(blank, reason="; ".join(reasons))
    slope, terms = _quality_at(ours, axis, target)
    less = [(anchor, slope, -1.0)] if anchor else _quality_at(theirs, axis, target)[1]
    used = terms + (less if anchor else [(point, -of_cost, -of_quality) for point, of_cost, of_quality in less])
    value = estimate(quality - baseline_quality, used, axis)
    return replace(blank, value=value, baseline_quality=baseline_quality, quality=quality)


def estimate(value: float, used: Sequence[Term], axis: Cost) -> Interval:
    """Return the confidence interval of a value, and its two-sided p-value against 0.

    The value is linearised in the means of the points in use. Its interval is Student's t with the degrees of freedom
    of Welch and Satterthwaite; for the difference of two points it is Welch's (Welch 1947).
    """
    used = [term for term in used if term[1:] != (0.0, 0.0)]
    runs = min(len(point.top1) for point, *_ in used)
    if runs < FEWEST_RUNS:
        return Interval(value, runs, note=f"an interval needs at least {FEWEST_RUNS} runs per point")
    variances = np.array([_changes(*term, axis).var(ddof=1) / len(term[0].top1) for term in used])
    free = np.array([len(point.top1) - 1 for point, *_ in used])
    if not variances.any():
        return Interval(value, runs, note="no interval: the runs of each point are equal")
    from scipy.special import stdtr, stdtrit  # note: a slow import

    error, degrees = math.sqrt(variances.sum()), variances.sum() ** 2 / (variances**2 / free).sum()
    margin = error * float(stdtrit(degrees, (1 + CONFIDENCE) / 2))
    p = float(2 * stdtr(degrees, -abs(value) / error))
    return Interval(value, runs, value - margin, value + margin, p)


def corrected(values: Sequence[Interval | None]) -> list[Interval | None]:
    """Return the estimates of a table with p-values corrected for their number (Holm 1979)."""
    tested = sorted((one.p, number) for number, one in enumerate(values) if one is not None and one.p is not None)
    corrections, largest = dict[int, float](), 0.0
    for rank, (p, number) in enumerate(tested):
        corrections[number] = largest = max(largest, min(1.0, (len(tested) - rank) * p))
    return [one and replace(one, p_corrected=corrections.get(number)) for number, one in enumerate(values)]


def p_above(point: CurvePoint, quality: float) -> float | None:
    """Return the p-value of Student's one-sided test that a point's mean quality is above one; None for few runs."""
    if len(point.top1) < FEWEST_RUNS or len(set(point.top1)) == 1:
        return None
    from scipy.stats import ttest_1samp  # note: a slow import

    return float(ttest_1samp(point.top1, quality, alternative="greater").pvalue)


def _changes(point: CurvePoint, of_cost: float, of_quality: float, axis: Cost) -> Floats:
    """Return by how much each run of a point changes a value, shape [runs]."""
    cost, top1 = np.array(point.costs[axis]), np.array(point.top1)
    changes: Floats = of_cost * (cost / cost.mean() - 1) + of_quality * (top1 - top1.mean())
    return changes


def _as_ratio(log_ratio: Interval, measured: Sequence[tuple[float, list[CurvePoint], int]], axis: Cost) -> Interval:
    """Return the ratio of a logarithm; an end is None where a curve would have to leave its measured costs.

    measured: the cost of each curve, its points, and 1 if a larger cost makes the ratio smaller, else -1.
    """
    value, low, high = math.exp(log_ratio.value), log_ratio.low, log_ratio.high
    if low is None or high is None:
        return replace(log_ratio, value=value)
    margin = math.exp(high - log_ratio.value)
    fits = {-1: True, 1: True}
    for cost, points, sign in measured:
        fits[-sign] &= cost * margin <= (points[-1].cost(axis) or 0.0)
        fits[sign] &= cost / margin >= (points[0].cost(axis) or 0.0)
    ends = (math.exp(low) if fits[-1] else None, math.exp(high) if fits[1] else None)
    if ends[value < 1] is None:
        note = "no p-value: the interval leaves the measured range"
        return replace(log_ratio, value=value, low=ends[0], high=ends[1], p=None, note=note)
    return replace(log_ratio, value=value, low=ends[0], high=ends[1])


def _log_cost_at(points: Sequence[CurvePoint], axis: Cost, quality: float) -> tuple[float, list[Term]]:
    """Return the slope of a curve's log cost at a quality, and what its points change there."""
    low, high = _around_quality(points, quality)
    rise = high.quality - low.quality
    slope = math.log((high.cost(axis) or 0.0) / (low.cost(axis) or 0.0)) / rise if rise > 0 else 0.0
    upper = (quality - low.quality) / rise if rise > 0 else 0.0
    lower = 1 - upper
    return slope, [(low, lower, -slope * lower), (high, upper, -slope * upper)]


def _quality_at(points: Sequence[CurvePoint], axis: Cost, cost: float) -> tuple[float, list[Term]]:
    """Return the slope of a curve's quality over log cost at a cost, and what its points change there."""
    low, high = _around_cost(points, axis, cost)
    left, right = (math.log(point.cost(axis) or 0.0) for point in (low, high))
    slope = (high.quality - low.quality) / (right - left) if right > left else 0.0
    upper = (math.log(cost) - left) / (right - left) if right > left else 0.0
    lower = 1 - upper
    return slope, [(low, -slope * lower, lower), (high, -slope * upper, upper)]


def _lists(points: Sequence[CurvePoint], axis: Cost) -> tuple[list[float], list[float]]:
    return [p.cost(axis) or 0.0 for p in points], [p.quality for p in points]


def _cost(points: Sequence[CurvePoint], axis: Cost, quality: float) -> float:
    return cost_at(*_lists(points, axis), quality) if points else math.nan


def _quality(points: Sequence[CurvePoint], axis: Cost, cost: float) -> float:
    return quality_at(*_lists(points, axis), cost) if points else math.inf


def _unmeasured_quality(
    name: str, points: Sequence[CurvePoint], axis: Cost, cost: float, scale: QualityScale
) -> str | None:
    worse, better = ("low", "high")[:: scale.sign]
    if not points:
        return f"{name} has no {axis}"
    if cost == 0.0:
        return f"{name} has no point this {worse}; its cheapest has {scale.text(points[0].quality)}"
    if math.isinf(cost):
        return f"{name} has no point this {better}; its best has {scale.text(max(p.quality for p in points))}"
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


def _around_quality(points: Sequence[CurvePoint], quality: float) -> tuple[CurvePoint, CurvePoint]:
    """Return the two points between which a curve first reaches a quality, the first and second if it starts there."""
    if points[0].quality == quality:
        return points[0], points[min(1, len(points) - 1)]
    return next((low, high) for low, high in pairwise(points) if low.quality < quality <= high.quality)


def _around_cost(points: Sequence[CurvePoint], axis: Cost, cost: float) -> tuple[CurvePoint, CurvePoint]:
    """Return the two points around a cost; twice the best of the points of exactly this cost."""
    if exact := [point for point in points if point.cost(axis) == cost]:
        best = max(exact, key=lambda point: point.quality)
        return best, best
    return next(
        (low, high) for low, high in pairwise(points) if (low.cost(axis) or 0.0) < cost < (high.cost(axis) or 0.0)
    )
