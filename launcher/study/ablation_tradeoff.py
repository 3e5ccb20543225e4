"""What an algorithm does to the tradeoff: the run that differs by it, read on the others' curve over their lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from launcher.study.ablation import Variant
from launcher.study.bootstrap import Estimate
from launcher.study.curves import Curve, Point
from launcher.study.speedup import Comparison, at_equal_cost, at_equal_quality


@dataclass(frozen=True)
class Tradeoff:
    """The algorithm's own effect: speed-up at equal quality, and percentage points at equal training time.

    Where the curve was not measured there is no number but the reason; `at_least` and `at_most` are speed-ups that are
    certain all the same.
    """

    algorithm: str
    kind: str  # "without": that run against the curve of all; "only": against the curve of none
    speedup: Estimate | None
    why_no_speedup: str
    at_least: float | None
    at_most: float | None
    gain: Estimate | None
    why_no_gain: str


def tradeoffs(variants: Sequence[Variant], curves: Mapping[str, tuple[Curve, Point] | None]) -> list[Tradeoff]:
    """Of each algorithm where the runs are there: the point of its variant, read on the curve of all or of none."""
    found = []
    for variant in variants:
        if variant.algorithm is None:
            continue
        kind = variant.name.partition(" ")[0]
        others = "all" if kind == "without" else "none"
        base, own = curves.get(others), curves.get(variant.name)
        if base is None or own is None:
            continue
        curve, its, point = replace(base[0], name=others), replace(own[0], name=variant.name), own[1]
        speed, gain = at_equal_quality(curve, its, "time", point), at_equal_cost(curve, its, "time", point)
        found.append(_of_leaving_out(variant, speed, gain) if kind == "without" else _of_adding(variant, speed, gain))
    return found


def _of_leaving_out(variant: Variant, speed: Comparison, gain: Comparison) -> Tradeoff:
    """The curve has the algorithm, the point has not: the comparison is its effect."""
    return Tradeoff(
        str(variant.algorithm), "without",
        speed.value, speed.reason, speed.bound, None, gain.value, gain.reason,
    )  # fmt: skip


def _of_adding(variant: Variant, speed: Comparison, gain: Comparison) -> Tradeoff:
    """The point has the algorithm, the curve has not: its effect is the other way round."""
    at_most = None if speed.bound is None else 1 / speed.bound
    return Tradeoff(
        str(variant.algorithm), "only",
        _turned(speed.value, lambda ratio: 1 / ratio), speed.reason, None, at_most,
        _turned(gain.value, lambda points: -points), gain.reason,
    )  # fmt: skip


def _turned(value: Estimate | None, turn: Callable[[float], float]) -> Estimate | None:
    """A value seen from the other side, whose interval's ends change places."""
    if value is None:
        return None
    low, high = (None if end is None else turn(end) for end in (value.high, value.low))
    return replace(value, value=turn(value.value), low=low, high=high)
