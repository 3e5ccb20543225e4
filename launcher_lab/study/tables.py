"""The tables of a study for the terminal, as rows and as JSON."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.markup import escape
from rich.table import Table

from launcher.console import table
from launcher.results.curves import COSTS, UNITS, Cost, CurvePoint, StudySetting, deviation, differing, metric_of
from launcher_lab.study.algoperf import MAX_RATIO, Scores, profile
from launcher_lab.study.results import Results, notes, on_front
from launcher_lab.study.speedup import Comparison

POINT_COLUMNS = (
    *("curve", "recipe", "model", "dataset", "hardware", "published", "epochs", "epochs_mean", "seeds"),
    *("top1_mean", "top1_deviation"),
    *("minutes_mean", "minutes_deviation", "wall_minutes_mean", "usd_mean"),
    *("front_time", "front_wall", "front_money", "front_epochs", "source", "note", "runs"),
)
# A comparison of so many single runs starts with the runs, with so many values in which their configs differ.
_FEW_RUNS, _MOST_SHOWN = 12, 6
_HEADINGS: dict[Cost, str] = {
    "time": "minutes",
    "wall": "wall clock, min",
    "money": "USD of training",
    "epochs": "epochs",
}


def point_rows(results: Results) -> list[dict[str, Any]]:
    """Return one row per point: means, deviations (None for one seed), and its fronts."""
    fronts = {axis: on_front(results.all_curves, axis, results.across) for axis in COSTS}
    rows = []
    for curve in results.all_curves:
        for point in curve.points:
            row = {
                "curve": curve.name,
                "recipe": curve.recipe,
                **asdict(curve.setting),
                "published": curve.source is not None,
                "epochs": point.epochs,
                "epochs_mean": point.cost("epochs"),
                "seeds": len(point.top1) if point.paths else None,
                "top1_mean": curve.metric.sign * point.quality,
                "top1_deviation": deviation(point.top1),
                "minutes_mean": point.cost("time"),
                "minutes_deviation": deviation(point.costs.get("time", ())),
                "wall_minutes_mean": point.cost("wall"),
                "usd_mean": point.cost("money"),
                "source": curve.source,
                "note": point.note,
                "runs": " ".join(map(str, point.paths)),
            }
            for axis, front in fronts.items():
                row[f"front_{axis}"] = (curve.setting, curve.name, point.cost(axis)) in front
            rows.append({column: row[column] for column in POINT_COLUMNS})
    return rows


def as_json(results: Results, comparisons: Sequence[Comparison], axis: Cost) -> dict[str, Any]:
    """Return points, comparisons, and excluded runs with reasons."""
    return {
        "axis": axis,
        "unit": UNITS[axis],
        "across": list(results.across),
        "notes": notes(results, axis),
        "points": point_rows(results),
        "comparisons": [asdict(comparison) for comparison in comparisons],
        "not_counted": [
            {"run": str(path), "state": state, "problem": why} for path, state, why in not_counted(results)
        ],
    }


def not_counted(results: Results) -> list[tuple[str, str, str]]:
    """Return path, state and reason of each excluded run."""
    reasons = {
        "stopped": "stopped before the end",
        "running": "not finished yet",
        "interrupted": "ended without an end record",
    }
    counted = {path for curve in results.curves for point in curve.points for path in point.paths}
    rows = []
    for run in results.runs:
        if run.state != "finished":
            rows.append((str(run.path), str(run.state), run.problem or reasons[run.state]))
        elif run.unusable:
            rows.append((str(run.path), run.state, run.unusable))
        elif run.path not in counted:
            rows.append((str(run.path), run.state, "another run has the same seed and length"))
    return rows


def rich_tables(results: Results, comparisons: Sequence[Comparison], axis: Cost) -> Iterator[tuple[str, Table]]:
    """Yield titles and tables in order."""
    points = [point for curve in results.curves for point in curve.points]
    several = any(len(point.top1) > 1 for point in points)
    if not several and 1 < len(points) <= _FEW_RUNS:
        yield "runs", _runs(results)
    if results.all_curves:
        where = f"across {' and '.join(results.across)}" if results.across else "of the setting"
        spread = "; ± one standard deviation of the runs" if several else ""
        yield f"tradeoff curves (● on the Pareto front {where}{spread})", _points(results, axis)
    if excluded := not_counted(results):
        yield "excluded runs", table("run", "state", "reason", rows=(map(escape, row) for row in excluded))
    if comparisons:
        yield f"comparison with the baseline, cost in {_HEADINGS[axis]}", _comparisons(comparisons, axis)


def _runs(results: Results) -> Table:
    """Return the table of the counted runs: final metric, minutes, price if known, and differences of configs."""
    counted = {path for curve in results.curves for point in curve.points for path in point.paths}
    runs = [run for run in results.runs if run.path in counted]
    names = Counter(run.path.name for run in runs)
    money = [run.money("training") for run in runs]
    priced = any(one is not None for one in money)
    numbers = (metric_of(runs).heading, "minutes", *(("USD of training",) if priced else ()))
    cells = table("run", *numbers, "differs in", numbers=numbers)
    for run, cost, own in zip(runs, money, differing(runs), strict=True):
        name = run.path.name if names[run.path.name] == 1 else str(run.path)
        more = len(own) - _MOST_SHOWN
        texts = own if more <= 0 else [*own[:_MOST_SHOWN], f"and {more} more (train diff RUN RUN)"]
        price = [("-" if cost is None else f"{cost:.4g}")] if priced else []
        minutes = f"{run.times.training / 60:.4g}" if run.times else "-"
        cells.add_row(
            escape(name), f"{run.metric.sign * (run.top1 or 0):.2f}", minutes, *price, escape(" ".join(texts))
        )
    return cells


def _points(results: Results, axis: Cost) -> Table:
    front = on_front(results.all_curves, axis, results.across)
    numbers = ("epochs", "runs", metric_of(results.all_curves).heading, "minutes", "wall", "USD of training")
    cells = table("curve", "data set, model", "hardware", *numbers, "●", numbers=numbers)
    for curve in results.all_curves:
        for point in curve.points:
            cells.add_row(
                escape(curve.name) + (" (published)" if curve.source else ""),
                escape(f"{curve.setting.dataset}, {curve.setting.model}"),
                escape(curve.setting.hardware),
                _epochs(point),
                str(len(point.top1)) if point.paths else "-",
                _with_deviation([curve.metric.sign * top1 for top1 in point.top1], ".2f"),
                _with_deviation(point.costs.get("time", ()), ".4g"),
                _with_deviation(point.costs.get("wall", ()), ".4g"),
                _with_deviation(point.costs.get("money", ()), ".4g"),
                "●" if (curve.setting, curve.name, point.cost(axis)) in front else "",
            )
    return cells


def _epochs(point: CurvePoint) -> str:
    """Return the length of a point's runs, after the mean of what they trained if something ended them early."""
    trained = point.cost("epochs")
    early = point.paths and trained is not None and trained != point.epochs
    return f"{trained:.4g} of {point.epochs}" if early else str(point.epochs or "-")


def _with_deviation(values: Sequence[float], form: str) -> str:
    if not values:
        return "-"
    mean = f"{sum(values) / len(values):{form}}"
    spread = deviation(values)
    return mean if spread is None else f"{mean} ± {spread:.2g}"


def _comparisons(comparisons: Sequence[Comparison], axis: Cost) -> Table:
    several = len({one.setting for one in comparisons}) > 1
    columns = ("curve", "baseline", "at", "result", "95 % interval", "runs", "p", "corrected p", "details")
    cells = table(*(["data set, model, hardware"] if several else []), *columns, numbers=["result", "runs"])
    for one in _informative(comparisons):
        where = [escape(", ".join(asdict(one.setting).values()))] if several else []
        names, equal_quality = (escape(one.curve), escape(one.baseline)), one.kind == "equal quality"
        at = f"{one.at:.2f}{one.unit}" if equal_quality else f"{one.at:.4g} {UNITS[axis]}"
        if one.value is None:
            bound = "-" if one.bound is None else f"> {one.bound:.2f}x"
            cells.add_row(*where, *names, at, bound, "", "", "", "", escape(one.reason))
            continue
        value = one.value
        if equal_quality:
            result, form = f"{value.value:.2f}x", "{:.2f}x"
            how = f"{one.baseline_cost:.4g} -> {one.cost:.4g} {UNITS[axis]}"
        else:
            result, form = f"{value.value:+.2f}{' points' if one.unit else ''}", "{:+.2f}"
            how = f"{one.baseline_quality:.2f} -> {one.quality:.2f}{one.unit}"
        tests = [_p(value.p), _p(value.p_corrected)]
        details = how + (f"; {value.note}" if value.note else "")
        cells.add_row(*where, *names, at, result, value.interval(form), str(value.runs), *tests, details)
    return cells


def _p(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if value >= 0.001 else "<0.001"


def _informative(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return values and bounds, and for a curve without any the first comparison of each kind, with its reason."""
    measured = {(one.setting, one.curve) for one in comparisons if one.value is not None or one.bound is not None}
    seen: Counter[tuple[StudySetting, str, str]] = Counter()
    shown = []
    for one in comparisons:
        seen[one.setting, one.curve, one.kind] += 1
        first = seen[one.setting, one.curve, one.kind] == 1
        if one.value is not None or one.bound is not None or (first and (one.setting, one.curve) not in measured):
            shown.append(one)
    return shown


def algoperf_json(scores: Scores) -> dict[str, Any]:
    """Return scores, times in seconds (None: missed target) and notes."""
    times = {
        submission: {workload: seconds if math.isfinite(seconds) else None for workload, seconds in row.items()}
        for submission, row in scores.seconds.items()
    }
    return {"score": scores.score, "seconds_to_target": times, "notes": list(scores.notes)}


def algoperf_table(scores: Scores) -> Table:
    """Return the table of submissions by score, with times per workload and the performance profile."""
    workloads = list(next(iter(scores.seconds.values()), {}))
    ratios = (1.0, 1.5, 2.0, MAX_RATIO)
    numbers = ("score", *(f"{w}, s" for w in workloads), *(f"within {r:g}x" for r in ratios))
    cells = table("submission", *numbers, numbers=numbers)
    for submission, score in sorted(scores.score.items(), key=lambda item: -item[1]):
        row = scores.seconds[submission]
        times = [f"{row[w]:,.4g}" if math.isfinite(row[w]) else "missed" for w in workloads]
        shares = [f"{profile(scores.counted, submission, ratio):.0%}" for ratio in ratios]
        cells.add_row(escape(submission), f"{score:.4f}", *times, *shares)
    return cells
