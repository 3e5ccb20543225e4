"""The results that `train compare` and `train report` show, read from run folders."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from launcher.config.similar import nearest
from launcher.errors import Problem, UserError
from launcher.records.run import RunSummary, find_runs, read_run
from launcher.records.scales import TOP1
from launcher.results.curve_math import pareto_front
from launcher.results.curves import ACROSS, Cost, Curve, CurvePoint, StudySetting, build_curves
from launcher.results.published import published_curves
from launcher_lab.study.speedup import Comparison, at_equal_cost, at_equal_quality, corrected, p_above

# The default baseline recipe.
BASELINE = "baseline"


@dataclass(frozen=True)
class Results:
    """All runs, the curves of the finished ones, and `published` curves.

    Comparisons and fronts cover all values of the fields in `across` (of `ACROSS`), and one value of each other field.
    """

    runs: Sequence[RunSummary]
    curves: Sequence[Curve]
    published: Sequence[Curve]
    across: Collection[str] = ()

    @property
    def all_curves(self) -> list[Curve]:
        return [*self.curves, *self.published]


def chosen_across(words: str | None) -> tuple[str, ...]:
    """Parse `--across machines,models`, without duplicates.

    Raises UserError if a word is not in `ACROSS`.
    """
    chosen = tuple(dict.fromkeys(word.strip() for word in words.split(","))) if words is not None else ()
    for word in chosen:
        if word not in ACROSS:
            candidate = nearest(word, ACROSS)
            hint = f"did you mean {candidate}? " if candidate else ""
            raise UserError(
                Problem(f"{hint}set one or more of {', '.join(ACROSS)}, separated by commas", "--across", word)
            )
    return chosen


def chosen_axis(axis: Cost | None, across: Collection[str]) -> Cost:
    """Return the axis; by default money across machines, whose hours differ in price, otherwise time."""
    return axis or ("money" if "machines" in across else "time")


def read_results(
    paths: Iterable[str],
    *,
    published: bool,
    price: float | None = None,
    across: Collection[str] = (),
    metric: str | None = None,
) -> Results:
    """Read all run folders at or below the paths; `price` per hour is for runs without one.

    Raises UserError if a path contains no run folder, or no run has the metric.
    """
    runs = [replace(read_run(path, metric), price=price) for path in find_runs(paths)]
    if metric is not None and runs and not any(run.evaluations for run in runs):
        message = "no run has it; `train ls metrics` lists those of each task"
        raise UserError(Problem(message, "--metric", metric))
    curves = build_curves(runs)
    # note: a metric means nothing beside another one
    metrics = {curve.metric for curve in curves} or {TOP1}
    return Results(runs, curves, published_curves(metrics) if published else [], across)


def notes(results: Results, axis: Cost) -> list[str]:
    """Return the notes of a comparison across settings."""
    if not results.across:
        return []
    lines = [f"compares across {' and '.join(results.across)}, with one front and one baseline"]
    if "machines" in results.across and axis in ("time", "wall"):
        lines.append("the machines differ, so a faster machine looks like a faster recipe")
    if unknown := {c.setting.hardware: None for c in results.all_curves if not c.on(axis)}:
        what = "price" if axis == "money" else axis
        lines.append(f"skipped the curves on {', '.join(unknown)} in the comparisons: they have no {what}")
    if axis == "money":
        currencies = {run.currency for run in results.runs if run.money("training") is not None}
        if len(currencies) > 1:
            lines.append(f"prices in {' and '.join(sorted(currencies))} are not converted")
    if "datasets" in results.across:
        lines.append("the data sets differ, so easier images look like a better recipe")
    return lines


def fronts(
    curves: Sequence[Curve], axis: Cost, across: Collection[str] = ()
) -> dict[StudySetting, list[tuple[Curve, float, float]]]:
    """Return the Pareto front of each setting: curve, cost and quality, cheapest first."""
    points: dict[StudySetting, list[tuple[Curve, float, float]]] = defaultdict(list)
    for curve in curves:
        points[curve.setting.across(across)] += [(curve, p.cost(axis) or 0.0, p.quality) for p in curve.on(axis)]
    return {
        setting: [group[index] for index in pareto_front([(cost, quality) for _, cost, quality in group])]
        for setting, group in points.items()
    }


def on_front(curves: Sequence[Curve], axis: Cost, across: Collection[str] = ()) -> set[tuple[StudySetting, str, float]]:
    """Return setting, curve name and cost of the points on a front."""
    return {(c.setting, c.name, cost) for front in fronts(curves, axis, across).values() for c, cost, _ in front}


def choose_baselines(
    curves: Sequence[Curve], name: str | None, axis: Cost, across: Collection[str] = ()
) -> dict[StudySetting, Curve]:
    """Return the baseline of each setting: the curve of that name, else of the recipe `baseline`, else the first.

    Curves with a known cost come first. `CURVE on PLACE` selects the curve of one data set, model or machine;
    `CURVE, PLACE` is its name in tables across them.

    Raises UserError if no curve has the name.
    """
    matching = [c for c in curves if name is None or name in _labels(c, across)]
    if name is not None and not matching:
        listed = ", ".join(dict.fromkeys(curve.name for curve in curves)) or "none (no finished run)"
        raise UserError(Problem(f"no such curve; one of: {listed}", "--baseline", name))
    preferred = name or BASELINE
    chosen: dict[StudySetting, Curve] = {}
    for curve in sorted(matching, key=lambda c: (not c.on(axis), c.name != preferred, c.recipe != preferred)):
        chosen.setdefault(curve.setting.across(across), curve)
    return chosen


def _labels(curve: Curve, across: Collection[str]) -> set[str]:
    places = (getattr(curve.setting, field) for field in ACROSS.values())
    return {curve.name, curve.label(across), *(f"{curve.name} on {place}" for place in places)}


def comparisons(
    curves: Sequence[Curve],
    baselines: dict[StudySetting, Curve],
    axis: Cost,
    *,
    qualities: Sequence[float],
    costs: Sequence[float],
    across: Collection[str] = (),
) -> list[Comparison]:
    """Compare each curve with the baseline of its setting at the given qualities and costs.

    Qualities are values of the metric, shares in percent, also in the results. Without any, compare at the baseline's
    own points. P-values are corrected for the number of comparisons.
    """
    compared = []
    for curve in curves:
        setting = curve.setting.across(across)
        baseline = baselines.get(setting)
        if baseline is None or baseline is curve or (across and not curve.on(axis)):
            continue
        curve, baseline = (replace(c, name=c.label(across), setting=setting) for c in (curve, baseline))
        own: list[CurvePoint] = [] if qualities or costs else baseline.on(axis)
        at_qualities: list[float | CurvePoint] = [*(curve.metric.sign * quality for quality in qualities), *own]
        at_costs: list[float | CurvePoint] = [*costs, *own]
        of_curve = [at_equal_quality(curve, baseline, axis, at) for at in at_qualities]
        of_curve += [at_equal_cost(curve, baseline, axis, at) for at in at_costs]
        compared += [one.printed(curve.metric) for one in of_curve]
    values = corrected([one.value for one in compared])
    return [replace(one, value=value) for one, value in zip(compared, values, strict=True)]


def means_above(curves: Sequence[Curve], axis: Cost, qualities: Sequence[float]) -> list[str]:
    """Return a line for each quality and curve: its cheapest point with a better mean, and the p-value of that."""
    lines = []
    for quality in qualities:
        for curve in curves:
            scale = curve.metric
            better = (point for point in curve.on(axis) if point.quality > scale.sign * quality)
            if (point := next(better, None)) and (p := p_above(point, scale.sign * quality)) is not None:
                runs = (
                    f"{curve.name}, {point.epochs} epochs: mean of {len(point.top1)} runs {scale.text(point.quality)}"
                )
                side = "above" if scale.sign > 0 else "below"
                lines.append(f"{runs}, {side} {quality:g}{scale.unit} with p {p:.2g}")
    return lines


def epochs_note(
    curves: Sequence[Curve], baselines: dict[StudySetting, Curve], compared: Sequence[Comparison]
) -> str | None:
    """Return a note on the curves that can be compared with the baseline at equal epochs only; None without any."""
    by_cost = {(one.setting, one.curve) for one in compared if one.value is not None}
    by_epochs = comparisons(curves, baselines, "epochs", qualities=[], costs=[])
    names = {one.curve: None for one in by_epochs if one.value and (one.setting, one.curve) not in by_cost}
    return f"--axis epochs compares {', '.join(names)} with the baseline at equal epochs" if names else None
