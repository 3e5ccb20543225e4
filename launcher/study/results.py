"""Everything a comparison or a report shows, from a list of run folders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from launcher.errors import Problem, UserError
from launcher.study.curve_math import pareto_front
from launcher.study.curves import Cost, Curve, CurvePoint, StudySetting, build_curves
from launcher.study.published import published_curves
from launcher.study.runs import RunSummary, find_runs, read_run
from launcher.study.speedup import Comparison, at_equal_cost, at_equal_quality

# The recipe to compare with, where a setting has it.
BASELINE = "baseline"


@dataclass(frozen=True)
class Results:
    """All runs found, and the finished ones as curves; `published` curves stand beside them."""

    runs: Sequence[RunSummary]
    curves: Sequence[Curve]
    published: Sequence[Curve]

    @property
    def all_curves(self) -> list[Curve]:
        return [*self.curves, *self.published]


def read_results(paths: Iterable[str], *, published: bool, price: float | None = None) -> Results:
    """Read all run folders at or below the paths; `price` is an hour of the machine of runs that have none.

    Raises:
        UserError: a path holds none.
    """
    runs = [replace(read_run(path), price=price) for path in find_runs(paths)]
    return Results(runs, build_curves(runs), published_curves() if published else [])


def fronts(curves: Sequence[Curve], axis: Cost) -> dict[StudySetting, list[tuple[Curve, float, float]]]:
    """Of each setting the points that no other beats on cost and quality: curve, cost and quality, cheapest first."""
    found = {}
    for setting in dict.fromkeys(curve.setting for curve in curves):
        points = [(c, p.cost(axis) or 0.0, p.quality) for c in curves if c.setting == setting for p in c.on(axis)]
        found[setting] = [points[index] for index in pareto_front([(cost, quality) for _, cost, quality in points])]
    return found


def on_front(curves: Sequence[Curve], axis: Cost) -> set[tuple[StudySetting, str, float]]:
    """Setting, curve name and cost of the points on a front."""
    return {(setting, c.name, cost) for setting, front in fronts(curves, axis).items() for c, cost, _ in front}


def choose_baselines(curves: Sequence[Curve], name: str | None) -> dict[StudySetting, Curve]:
    """The curve to compare with in each setting: the one of that name, else of the recipe `baseline`, else the first.

    `CURVE on DATASET` names that of one data set alone.

    Raises:
        UserError: no curve has the name.
    """
    named = [c for c in curves if name in (None, c.name, f"{c.name} on {c.setting.dataset}")]
    if name is not None and not named:
        listed = ", ".join(dict.fromkeys(curve.name for curve in curves)) or "none: no run has finished"
        raise UserError(Problem(f"is no curve of these runs; the curves: {listed}", "--baseline", name))
    wanted = name or BASELINE
    chosen: dict[StudySetting, Curve] = {}
    for curve in sorted(named, key=lambda curve: (curve.name != wanted, curve.recipe != wanted)):
        chosen.setdefault(curve.setting, curve)
    return chosen


def comparisons(
    curves: Sequence[Curve],
    baselines: dict[StudySetting, Curve],
    axis: Cost,
    *,
    qualities: Sequence[float],
    costs: Sequence[float],
) -> list[Comparison]:
    """Each curve against the baseline of its setting: at the qualities and costs asked for, else at those measured.

    Without a wish, the baseline's own points say at which qualities and costs.
    """
    found = []
    for curve in curves:
        baseline = baselines.get(curve.setting)
        if baseline is None or baseline is curve:
            continue
        own: list[CurvePoint] = [] if qualities or costs else baseline.on(axis)
        at_qualities: list[float | CurvePoint] = [*qualities, *own]
        at_costs: list[float | CurvePoint] = [*costs, *own]
        found += [at_equal_quality(curve, baseline, axis, at) for at in at_qualities]
        found += [at_equal_cost(curve, baseline, axis, at) for at in at_costs]
    return found
