"""The grid of a recipe's algorithms: all, none, all but one, one alone; and what finished runs say of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.config.changes import is_free
from launcher.config.layers import leaves
from launcher.config.resolved import as_mapping
from launcher.config.schema import RunConfig
from launcher.plan.schedule import dilated_epochs
from launcher.study.curves import Curve, Point, build_curves, changed_with_length
from launcher.study.runs import Run

# Keys that runs of one variant may differ in, beside those that a run may change while it goes on.
_APART = (
    *("seed", "recipe", "schedule.dilate"),
    *("dataset.classes", "dataset.train_samples", "dataset.val_samples"),
)


@dataclass(frozen=True)
class Variant:
    """One row of the grid: a name, the algorithm that it is about, and the words that make it of the recipe."""

    name: str
    algorithm: str | None
    words: tuple[str, ...]


@dataclass(frozen=True)
class Measured:
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


def grid(algorithms: Sequence[str]) -> list[Variant]:
    """All, none, and for each algorithm all but it and it alone."""
    found = [Variant("all", None, ()), Variant("none", None, ("algorithms=[]",))]
    for name in algorithms:
        found.append(Variant(f"without {name}", name, (f"algorithms.{name}=off",)))
    for name in algorithms:
        found.append(Variant(f"only {name}", name, (f"algorithms=[{name}]",)))
    return found


def comparable(configs: Sequence[RunConfig], runs: Sequence[Run], pictures: str | None) -> list[Run]:
    """The finished runs of the configs, at any length and seed, on the machine that has the most of them.

    All on one data set, that of the identity `pictures`; where it is not known the one that most of them are on.
    """
    wanted = [_decisive(config.recipe, dict(leaves(as_mapping(config)))) for config in configs]
    found = [run for run in runs if run.top1 is not None and _decisive(run.recipe, run.values) in wanted]
    pictures = pictures or next(iter(dict(Counter(run.identity for run in found).most_common(1))), None)
    found = [run for run in found if run.identity == pictures]
    machines = Counter(run.hardware for run in found)
    return [run for run in found if run.hardware == machines.most_common(1)[0][0]]


def curve_of(config: RunConfig, runs: Sequence[Run]) -> tuple[Curve, Point] | None:
    """A config's runs on one machine as a curve over their lengths, and its point at the config's own; None without."""
    wanted = _decisive(config.recipe, dict(leaves(as_mapping(config))))
    length = dilated_epochs(config.epochs, config.schedule.dilate)
    for curve in build_curves(run for run in runs if _decisive(run.recipe, run.values) == wanted):
        for point in curve.points:
            if point.epochs == length:
                return curve, point
    return None


def measured(point: Point) -> Measured:
    """A point's runs, whatever their seed."""
    return Measured(len(point.top1), point.quality, point.cost("time") or 0.0)


def effects(variants: Sequence[Variant], found: Mapping[str, Measured | None]) -> list[Effect]:
    """The effect of each algorithm where both runs are there that it takes."""
    listed = []
    for variant in variants:
        if variant.algorithm is None:
            continue
        kind = variant.name.partition(" ")[0]
        own, other = found.get(variant.name), found.get("all" if kind == "without" else "none")
        if own is None or other is None:
            continue
        with_it, without = (other, own) if kind == "without" else (own, other)
        listed.append(
            Effect(variant.algorithm, kind, with_it.top1 - without.top1, with_it.minutes / without.minutes - 1)
        )
    return listed


def limits(parts: Mapping[str, float]) -> list[tuple[str, float, float]]:
    """Part, its share of the time, and Amdahl's limit: the speed-up if it cost nothing; the largest first."""
    total = sum(parts.values())
    shares = {name: seconds / total for name, seconds in parts.items()}
    return [(name, share, 1 / (1 - share)) for name, share in sorted(shares.items(), key=lambda item: -item[1])]


def _decisive(recipe: str | None, values: Mapping[str, Any]) -> dict[str, Any]:
    apart = {*_APART, *changed_with_length(recipe)} if recipe else {*_APART}
    return {key: value for key, value in values.items() if not is_free(key) and key not in apart}
