"""One curve against another: speed-up at equal quality, quality at equal cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from lab.study.curve_math import BootstrapEstimate, Floats, cost_at, estimate, quality_at, resample
from lab.study.curves import Cost, Curve, CurvePoint, StudySetting

_SEED = 0  # of the resampling: the same runs give the same interval


@dataclass(frozen=True)
class Comparison:
    """A curve against the baseline, at one quality or one cost.

    `value` is the speed-up (baseline's cost / this cost) or the gain in percentage points; None beyond the measured
    range, and then `reason` says which side was not measured, and `bound` is a speed-up above 1 that is certain.
    """

    setting: StudySetting
    kind: str  # "equal quality" or "equal cost"
    curve: str
    baseline: str
    at: float  # percent, or the cost in its unit
    value: BootstrapEstimate | None
    baseline_cost: float | None
    cost: float | None
    baseline_quality: float | None
    quality: float | None
    reason: str = ""
    bound: float | None = None


def at_equal_quality(curve: Curve, baseline: Curve, axis: Cost, quality: float | CurvePoint) -> Comparison:
    """How many times less a curve costs than the baseline to reach a quality: in percent, or that of its own point.

    Of a point of the baseline the quality is uncertain too: it is drawn anew in each resample.
    """
    ours, theirs = curve.on(axis), baseline.on(axis)
    anchor = quality if isinstance(quality, CurvePoint) else None
    wanted = quality.quality if isinstance(quality, CurvePoint) else quality
    cost = _cost(ours, axis, wanted)
    known = anchor.cost(axis) if anchor is not None else None
    baseline_cost = _cost(theirs, axis, wanted) if known is None else known
    blank = Comparison(curve.setting, "equal quality", curve.name, baseline.name, wanted, None, None, None, None, None)
    reasons = [
        _unmeasured_quality(name, points, axis, found)
        for name, points, found in ((curve.name, ours, cost), (baseline.name, theirs, baseline_cost))
    ]
    if any(reasons):
        return replace(blank, reason="; ".join(filter(None, reasons)), bound=_bound(ours, axis, cost, baseline_cost))
    generator = np.random.default_rng(_SEED)
    costs, qualities = resample(theirs, axis, generator)
    if anchor is not None:
        column = theirs.index(anchor)
        baseline_costs, targets = costs[:, column], qualities[:, column]
    else:
        baseline_costs, targets = cost_at(costs, qualities, wanted), np.full(len(costs), wanted)
    with np.errstate(divide="ignore", invalid="ignore"):
        resampled = np.log(baseline_costs) - np.log(cost_at(*resample(ours, axis, generator), targets))
    used = [*_around_quality(ours, wanted), *([anchor] if anchor else _around_quality(theirs, wanted))]
    found = estimate(math.log(baseline_cost / cost), _known_side(resampled), fewest_seeds=_fewest(used))
    low, high = (None if end is None else math.exp(end) for end in (found.low, found.high))
    value = BootstrapEstimate(baseline_cost / cost, low, high, found.p, found.note)
    return replace(blank, value=value, baseline_cost=baseline_cost, cost=cost)


def at_equal_cost(curve: Curve, baseline: Curve, axis: Cost, cost: float | CurvePoint) -> Comparison:
    """How many percentage points better a curve is than the baseline at a cost: a number, or that of its own point."""
    ours, theirs = curve.on(axis), baseline.on(axis)
    anchor = cost if isinstance(cost, CurvePoint) else None
    known = cost.cost(axis) if isinstance(cost, CurvePoint) else cost
    wanted = math.nan if known is None else known
    quality = _quality(ours, axis, wanted)
    baseline_quality = _quality(theirs, axis, wanted) if anchor is None else anchor.quality
    blank = Comparison(curve.setting, "equal cost", curve.name, baseline.name, wanted, None, None, None, None, None)
    reasons = [
        _unmeasured_cost(name, points, axis)
        for name, points, found in ((curve.name, ours, quality), (baseline.name, theirs, baseline_quality))
        if math.isinf(found) or not points
    ]
    if reasons:
        return replace(blank, reason="; ".join(reasons))
    generator = np.random.default_rng(_SEED)
    costs, qualities = resample(theirs, axis, generator)
    if anchor is not None:
        column = theirs.index(anchor)
        baseline_qualities, budgets = qualities[:, column], costs[:, column]
    else:
        baseline_qualities, budgets = quality_at(costs, qualities, wanted), np.full(len(costs), wanted)
    with np.errstate(invalid="ignore"):
        resampled = quality_at(*resample(ours, axis, generator), budgets) - baseline_qualities
    used = [*_around_cost(ours, axis, wanted), *([anchor] if anchor else _around_cost(theirs, axis, wanted))]
    value = estimate(quality - baseline_quality, _known_side(resampled), fewest_seeds=_fewest(used))
    return replace(blank, value=value, baseline_quality=baseline_quality, quality=quality)


def _known_side(resampled: Floats) -> Floats:
    """Where both curves left their range nothing is known of the difference: counted as none."""
    return np.where(np.isnan(resampled), 0.0, resampled)


def _arrays(points: Sequence[CurvePoint], axis: Cost) -> tuple[Floats, Floats]:
    return np.array([p.cost(axis) for p in points], float), np.array([p.quality for p in points], float)


def _cost(points: Sequence[CurvePoint], axis: Cost, quality: float) -> float:
    return float(cost_at(*_arrays(points, axis), quality)) if points else math.nan


def _quality(points: Sequence[CurvePoint], axis: Cost, cost: float) -> float:
    return float(quality_at(*_arrays(points, axis), cost)) if points else math.inf


def _unmeasured_quality(name: str, points: Sequence[CurvePoint], axis: Cost, found: float) -> str | None:
    if not points:
        return f"{name}: its {axis} is not known"
    if found == 0.0:
        return f"{name} was not measured as low: its cheapest point has {points[0].quality:.2f} %"
    if math.isinf(found):
        return f"{name} was not measured as high: its best point has {max(p.quality for p in points):.2f} %"
    return None


def _unmeasured_cost(name: str, points: Sequence[CurvePoint], axis: Cost) -> str:
    if not points:
        return f"{name}: its {axis} is not known"
    low, high = points[0].cost(axis), points[-1].cost(axis)
    return f"{name} was measured from {low:.4g} to {high:.4g} only"


def _bound(ours: Sequence[CurvePoint], axis: Cost, cost: float, baseline_cost: float) -> float | None:
    """The speed-up above 1 that the curve's cheapest point has at least, being better than the quality asked for."""
    if cost != 0.0 or not 0.0 < baseline_cost < math.inf:
        return None
    cheapest = ours[0].cost(axis)
    assert cheapest is not None
    return baseline_cost / cheapest if baseline_cost > cheapest else None


def _around_quality(points: Sequence[CurvePoint], quality: float) -> list[CurvePoint]:
    """The point that has the quality, or the two between which the curve first reaches it."""
    if points[0].quality == quality:
        return [points[0]]
    low, high = next((a, b) for a, b in pairwise(points) if a.quality < quality <= b.quality)
    return [high] if high.quality == quality else [low, high]


def _around_cost(points: Sequence[CurvePoint], axis: Cost, cost: float) -> list[CurvePoint]:
    """The points of a cost, or the two between which it lies."""
    exact = [p for p in points if p.cost(axis) == cost]
    below = [p for p in points if (p.cost(axis) or 0.0) < cost]
    return exact or [below[-1], points[len(below)]]


def _fewest(points: Sequence[CurvePoint]) -> int:
    return min(len(p.top1) for p in points)
