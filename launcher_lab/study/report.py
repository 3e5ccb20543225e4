"""Write results as an image, or as one HTML page that needs no network: the data, and a script that draws them."""

from __future__ import annotations

import html
import json
import math
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from launcher import atomic
from launcher.disk import reason
from launcher.errors import Problem, UserError
from launcher.records.run import Evaluated, RunSummary
from launcher.records.scales import QualityScale
from launcher.results.curves import (
    ACROSS,
    COSTS,
    Cost,
    Curve,
    CurvePoint,
    dataset_names,
    deviation,
    metric_of,
    named_by_metric,
)
from launcher_lab.study.results import Results, fronts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PAGE = Path(__file__).with_name("page")
_SCRIPTS = ("state.js", "charts.js", "table.js", "controls.js")
# Limits of the page's size: evaluations of all learning curves, and of one curve.
_EVALUATIONS, _FEWEST, _MOST = 40_000, 12, 400
_DIGITS = 5
# The colours of page/page.html on white, distinct for colour-blind readers; markers differ too.
COLOURS = ("#0652a7", "#bc6712", "#008d5b", "#cc79a7", "#ac42f0", "#ce003b", "#000000")
_MARKERS = "osD^vP*"
GREY = "#767676"
_LABELS: dict[Cost, str] = {
    "time": "training time, minutes",
    "wall": "wall clock, minutes",
    "money": "USD",
    "epochs": "epochs",
}
_ROWS = 32  # of a column of the legend


def write_file(path: Path, write: Callable[[Path], object], option: str = "--output") -> None:
    """Write a file under a temporary name, then rename it.

    Raises UserError, with the option of its path, if it cannot be written.
    """
    try:
        with atomic.writing(path) as temporary:
            write(temporary)
    except OSError as error:
        raise UserError(Problem(f"cannot be written: {reason(error)}", option, path)) from None


def drawing(title: str, x: str, y: str) -> tuple[Figure, Axes]:
    """Return an empty figure and its axes, labelled."""
    from matplotlib.figure import Figure  # note: the import takes most of a second

    figure = Figure(figsize=(8, 5.5), dpi=130, layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel=x, ylabel=y)
    axes.set_title(title, loc="left", weight="bold", fontsize=11, parse_math=False)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def page(results: Results, *, title: str, written: str, axis: Cost = "time") -> str:
    """Return the page; `written` is its date, `axis` its first cost. Text of a run never becomes markup."""
    return filled(page_data(results, written, axis), title)


def filled(data: Mapping[str, Any], title: str) -> str:
    """Return the page with the data of `page_data`."""
    # note: only `<` could end the script element
    text = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return Template((_PAGE / "page.html").read_text(encoding="utf-8")).substitute(
        title=html.escape(title),
        script="\n".join((_PAGE / name).read_text(encoding="utf-8") for name in _SCRIPTS),
        data=text,
    )


def page_data(results: Results, written: str, axis: Cost = "time") -> dict[str, Any]:
    """Return the data for the page's script: pairs of (mean, deviation), and each run's config as changes to `base`.

    Qualities of points and learning curves have the sign of `metric`; that of a run is the metric's own value.
    """
    index_of = {run.path: number for number, run in enumerate(results.runs)}
    curve_of = {path: number for number, c in enumerate(results.curves) for point in c.points for path in point.paths}
    configs = [{key: _plain(value) for key, value in run.values.items()} for run in results.runs]
    base, keys = _most_common(configs)
    numbers = {key: number for number, key in enumerate(keys)}
    currencies = Counter(run.currency for run in results.runs)
    datasets = dataset_names(results.runs)
    limit = max(_FEWEST, min(_MOST, _EVALUATIONS // max(1, len(results.runs))))
    return {
        "written": written,
        "axis": axis,
        "across": [ACROSS[what] for what in results.across],
        "currency": currencies.most_common(1)[0][0] if currencies else "USD",
        "keys": keys,
        "base": base,
        "curves": [_curve(curve, index_of) for curve in results.all_curves],
        "runs": [
            {
                **_run(run, limit),
                "dataset": named_by_metric(datasets[run.identity], run.metric),
                **_differences(config, base, numbers),
                "curveIndex": curve_of.get(run.path, -1),
                "curve": results.curves[curve_of[run.path]].name if run.path in curve_of else run.recipe,
            }
            for run, config in zip(results.runs, configs, strict=True)
        ],
    }


def _curve(curve: Curve, index_of: Mapping[Path, int]) -> dict[str, Any]:
    return {
        "name": curve.name,
        **vars(curve.setting),
        "metric": curve.metric,
        "published": curve.source is not None,
        "source": curve.source,
        "points": [_point(point, index_of) for point in curve.points],
    }


def _point(point: CurvePoint, index_of: Mapping[Path, int]) -> dict[str, Any]:
    return {
        "epochs": point.epochs,
        "top1": _pair(point.top1),
        "cost": {axis: _pair(point.costs[axis]) for axis in COSTS if point.costs.get(axis)},
        "runs": [index_of[path] for path in point.paths],
        "note": point.note,
    }


def _pair(values: Sequence[float]) -> list[float | None]:
    return [_short(sum(values) / len(values)), _short(deviation(values))]


def _run(run: RunSummary, limit: int) -> dict[str, Any]:
    times = run.times
    return {
        "name": str(run.path),
        "metric": run.metric,
        "state": run.state,
        "problem": run.problem,
        "model": run.model,
        "hardware": run.hardware if run.device else "?",
        "epochs": run.epochs,
        "seed": run.seed,
        "top1": _short(run.metric.sign * run.evaluations[-1].top1) if run.evaluations else None,
        "time": _short(times.training / 60) if times else None,
        "wall": _short(times.wall / 60) if times else None,
        "money": _short(run.money("training")),
        "command": shlex.join(run.command),
        "learning": _learning(run.evaluations, limit),
    }


def _learning(evaluations: Sequence[Evaluated], limit: int) -> tuple[list[float | None], list[float | None]]:
    """Return epochs and accuracies; above `limit`, keep the lowest and highest of each interval, first and last.

    The drawn line keeps its envelope (M4, Jugel et al. 2014).
    """
    finite = [e for e in evaluations if math.isfinite(e.top1) and math.isfinite(e.epoch)]
    if len(finite) > limit:
        count, total = limit // 2 - 1, len(finite)
        stretches = [range(total * number // count, total * (number + 1) // count) for number in range(count)]
        extremes = {pick(stretch, key=lambda at: finite[at].top1) for stretch in stretches for pick in (min, max)}
        finite = [finite[at] for at in sorted(extremes | {0, total - 1})]
    return [_short(e.epoch) for e in finite], [_short(e.top1) for e in finite]


def _most_common(configs: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """Return the most common values of the keys that most configs have, and all keys in order."""
    keys = list(dict.fromkeys(key for config in configs for key in config))
    readable = [config for config in configs if config]
    base = {}
    for key in keys:
        values = Counter(json.dumps(config[key]) for config in readable if key in config)
        if 2 * values.total() > len(readable):
            base[key] = json.loads(values.most_common(1)[0][0])
    return base, keys


def _differences(config: Mapping[str, Any], base: Mapping[str, Any], numbers: Mapping[str, int]) -> dict[str, Any]:
    """Return the `changes` to the base by key number, and the numbers of the `missing` keys."""
    changes = {numbers[key]: value for key, value in config.items() if key not in base or base[key] != value}
    return {"changes": changes, "missing": [numbers[key] for key in base if key not in config]}


def _plain(value: Any) -> Any:
    """Convert a config's value to JSON; values without a JSON type become text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    known = value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))
    return value if known else str(value)


def _short(number: float | None) -> float | None:
    """Round a number to the page's digits; None if it is not finite."""
    return float(f"{number:.{_DIGITS}g}") if number is not None and math.isfinite(number) else None


def tradeoff_figure(results: Results, *, title: str, axis: Cost) -> Figure:
    """Return a drawing: curves with error bars of one standard deviation, published ones in grey, and Pareto fronts.

    One run without published points beside it is drawn as its learning curve.
    """
    curves = beside(results)
    if len(results.runs) == 1 and len(curves) == len(results.curves):
        return _learning_figure(results.runs[0], title=title)
    scale = metric_of(results.all_curves)
    figure, axes = drawing(title, _LABELS[axis], scale.heading.replace(" %", ", %"))
    shown = [curve for curve in curves if curve.on(axis)]
    varying = [what for what, field in ACROSS.items() if len({getattr(c.setting, field) for c in shown}) > 1]
    for colours, published in ((COLOURS, False), ((GREY,), True)):
        for number, curve in enumerate(c for c in shown if (c.source is not None) == published):
            colour, marker = colours[number % len(colours)], _MARKERS[number % len(_MARKERS)]
            _draw(axes, curve, axis, colour, marker, name=curve.label(varying), sign=scale.sign)
    label: str | None = "Pareto front"
    for front in fronts(shown, axis, results.across).values():
        _, costs, qualities = zip(*front, strict=True)
        signed = [scale.sign * quality for quality in qualities]
        axes.plot(costs, signed, color="black", linestyle="--", linewidth=1.2, zorder=1, label=label)
        label = None
    _best_above(axes, scale)
    if shown:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        columns = 1 + (len(shown) - 1) // _ROWS
        figure.set_size_inches(8 + (4 if varying else 2.5) * columns, 5.5)
        figure.legend(fontsize=8 if len(shown) <= _ROWS else 6, frameon=False, loc="outside right upper", ncols=columns)
    return figure


def _learning_figure(run: RunSummary, *, title: str) -> Figure:
    scale = run.metric
    figure, axes = drawing(
        f"{title}\n{run.path.name}: {run.recipe}, {run.model}, {run.dataset}", "epochs", scale.heading
    )
    epochs, values = [one.epoch for one in run.evaluations], [scale.sign * one.top1 for one in run.evaluations]
    axes.plot(epochs, values, color=COLOURS[0], marker="o", markersize=4, label=scale.heading)
    _best_above(axes, scale)
    axes.legend(frameon=False)
    return figure


def _best_above(axes: Axes, scale: QualityScale) -> None:
    if scale.sign < 0:
        axes.invert_yaxis()


def beside(results: Results) -> list[Curve]:
    """Return the curves of the runs, and the published ones on their data sets and models, or across these."""
    own = [curve.setting for curve in results.curves]
    fields = [field for what, field in ACROSS.items() if what not in ("machines", *results.across)]
    known = {field: {getattr(setting, field) for setting in own} for field in fields}
    return [
        *results.curves,
        *(
            curve
            for curve in results.published
            if not own or all(getattr(curve.setting, field) in known[field] for field in fields)
        ),
    ]


def _draw(axes: Axes, curve: Curve, axis: Cost, colour: str, marker: str, *, name: str, sign: int) -> None:
    points = curve.on(axis)
    published = curve.source is not None
    label = f"{name} (published)" if published else name
    costs, qualities = [point.cost(axis) or 0.0 for point in points], [sign * point.quality for point in points]
    xerr = [deviation(point.costs[axis]) or 0.0 for point in points]
    yerr = [deviation(point.top1) or 0.0 for point in points]
    axes.errorbar(
        costs, qualities, yerr, xerr, color=colour, marker=marker, markerfacecolor="white" if published else colour,
        markersize=5, linewidth=1.0 if published else 1.6, capsize=2, label=label,
    )  # fmt: skip
