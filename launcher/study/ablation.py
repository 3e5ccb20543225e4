"""The grid of a recipe's algorithms: all, none, all but one, one alone; and what finished runs say of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from launcher.config.changes import is_free
from launcher.config.layers import leaves
from launcher.config.resolved import as_mapping
from launcher.config.schema import RunConfig
from launcher.plan.schedule import dilated_epochs
from launcher.study.curve_math import BootstrapEstimate
from launcher.study.curves import Curve, CurvePoint, build_curves, changed_with_length
from launcher.study.runs import RunSummary
from launcher.study.speedup import Comparison, at_equal_cost, at_equal_quality

# Keys that runs of one variant may differ in, beside those that a run may change while it goes on.
_APART = (
    *("seed", "recipe", "schedule.dilate"),
    *("dataset.classes", "dataset.train_samples", "dataset.val_samples"),
)
# Kind of variant to the variant that it is compared with.
_BASES = {"without": "all", "only": "none"}

T = TypeVar("T")


@dataclass(frozen=True)
class Variant:
    """One row of the grid: a name, the algorithm that it is about, and the words that make it of the recipe."""

    name: str
    algorithm: str | None
    words: tuple[str, ...]

    @property
    def kind(self) -> str:
        """all, none, without or only."""
        return self.name.partition(" ")[0]


@dataclass(frozen=True)
class VariantResult:
    """Mean top-1 in percent and training minutes of a variant's finished runs, one a seed."""

    runs: int
    top1: float
    minutes: float


@dataclass(frozen=True)
class Effect:
    """What a variant changes against the one it is compared with: top-1 in percentage points, and a part of the time.

    All but one is compared with all, one alone with none; the sign is the algorithm's own effect.
    """

    algorithm: str
    kind: str
    top1: float
    time: float


@dataclass(frozen=True)
class Tradeoff:
    """The algorithm's own effect: speed-up at equal quality, and percentage points at equal training time.

    Where the curve was not measured there is no number but the reason; `at_least` and `at_most` are speed-ups that are
    certain all the same.
    """

    algorithm: str
    kind: str  # "without": that run against the curve of all; "only": against the curve of none
    speedup: BootstrapEstimate | None
    why_no_speedup: str
    at_least: float | None
    at_most: float | None
    gain: BootstrapEstimate | None
    why_no_gain: str


def grid(algorithms: Sequence[str]) -> list[Variant]:
    """All, none, and for each algorithm all but it and it alone."""
    found = [Variant("all", None, ()), Variant("none", None, ("algorithms=[]",))]
    for name in algorithms:
        found.append(Variant(f"without {name}", name, (f"algorithms.{name}=off",)))
    for name in algorithms:
        found.append(Variant(f"only {name}", name, (f"algorithms=[{name}]",)))
    return found


def comparable(configs: Sequence[RunConfig], runs: Sequence[RunSummary], pictures: str | None) -> list[RunSummary]:
    """The finished runs of the configs, at any length and seed, on the machine that has the most of them.

    All on one data set, that of the identity `pictures`; where it is not known the one that most of them are on.
    """
    wanted = [_decisive(config.recipe, dict(leaves(as_mapping(config)))) for config in configs]
    found = [run for run in runs if run.top1 is not None and _decisive(run.recipe, run.values) in wanted]
    pictures = pictures or next(iter(dict(Counter(run.identity for run in found).most_common(1))), None)
    found = [run for run in found if run.identity == pictures]
    machines = Counter(run.hardware for run in found)
    return [run for run in found if run.hardware == machines.most_common(1)[0][0]]


def curve_of(config: RunConfig, runs: Sequence[RunSummary]) -> tuple[Curve, CurvePoint] | None:
    """A config's runs on one machine as a curve over their lengths, and its point at the config's own; None without."""
    wanted = _decisive(config.recipe, dict(leaves(as_mapping(config))))
    length = dilated_epochs(config.epochs, config.schedule.dilate)
    for curve in build_curves(run for run in runs if _decisive(run.recipe, run.values) == wanted):
        for point in curve.points:
            if point.epochs == length:
                return curve, point
    return None


def measured(point: CurvePoint) -> VariantResult:
    """A point's runs, whatever their seed."""
    return VariantResult(len(point.top1), point.quality, point.cost("time") or 0.0)


def effects(variants: Sequence[Variant], found: Mapping[str, VariantResult | None]) -> list[Effect]:
    """The effect of each algorithm where both runs are there that it takes."""
    listed = []
    for variant, algorithm, own, base in _beside_base(variants, found):
        with_it, without = (base, own) if variant.kind == "without" else (own, base)
        listed.append(
            Effect(algorithm, variant.kind, with_it.top1 - without.top1, with_it.minutes / without.minutes - 1)
        )
    return listed


def tradeoffs(variants: Sequence[Variant], curves: Mapping[str, tuple[Curve, CurvePoint] | None]) -> list[Tradeoff]:
    """Of each algorithm where the runs are there: the point of its variant, read on the curve of all or of none."""
    found = []
    for variant, algorithm, (own, point), (base, _) in _beside_base(variants, curves):
        curve, its = replace(base, name=_BASES[variant.kind]), replace(own, name=variant.name)
        speed, gain = at_equal_quality(curve, its, "time", point), at_equal_cost(curve, its, "time", point)
        made = _of_leaving_out if variant.kind == "without" else _of_adding
        found.append(made(algorithm, speed, gain))
    return found


def limits(parts: Mapping[str, float]) -> list[tuple[str, float, float]]:
    """Part, its share of the time, and Amdahl's limit: the speed-up if it cost nothing; the largest first."""
    total = sum(parts.values())
    shares = {name: seconds / total for name, seconds in parts.items()}
    return [(name, share, 1 / (1 - share)) for name, share in sorted(shares.items(), key=lambda item: -item[1])]


def _beside_base(variants: Sequence[Variant], found: Mapping[str, T | None]) -> Iterator[tuple[Variant, str, T, T]]:
    """Each variant that is about an algorithm, with the algorithm, what is found of it, and of all or none."""
    for variant in variants:
        own, base = found.get(variant.name), found.get(_BASES.get(variant.kind, ""))
        if variant.algorithm is not None and own is not None and base is not None:
            yield variant, variant.algorithm, own, base


def _decisive(recipe: str | None, values: Mapping[str, Any]) -> dict[str, Any]:
    apart = {*_APART, *changed_with_length(recipe)} if recipe else {*_APART}
    return {key: value for key, value in values.items() if not is_free(key) and key not in apart}


def _of_leaving_out(algorithm: str, speed: Comparison, gain: Comparison) -> Tradeoff:
    """The curve has the algorithm, the point has not: the comparison is its effect."""
    return Tradeoff(
        algorithm, "without",
        speed.value, speed.reason, speed.bound, None, gain.value, gain.reason,
    )  # fmt: skip


def _of_adding(algorithm: str, speed: Comparison, gain: Comparison) -> Tradeoff:
    """The point has the algorithm, the curve has not: its effect is the other way round."""
    at_most = None if speed.bound is None else 1 / speed.bound
    return Tradeoff(
        algorithm, "only",
        _turned(speed.value, lambda ratio: 1 / ratio), speed.reason, None, at_most,
        _turned(gain.value, lambda points: -points), gain.reason,
    )  # fmt: skip


def _turned(value: BootstrapEstimate | None, turn: Callable[[float], float]) -> BootstrapEstimate | None:
    """A value seen from the other side, whose interval's ends change places."""
    if value is None:
        return None
    low, high = (None if end is None else turn(end) for end in (value.high, value.low))
    return replace(value, value=turn(value.value), low=low, high=high)
