"""The report: tradeoff and learning curves by Altair, as a page that needs no network, or as an image."""

from __future__ import annotations

import base64
import gzip
import html
import json
import math
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from launcher.counts import count_of
from launcher.errors import Problem, UserError
from launcher.files import atomic
from launcher.files.disk import reason
from launcher.files.outputs import marked
from launcher.files.page import text
from launcher.installation import how_to_add
from launcher.records.run import Evaluated
from launcher.results.curves import ACROSS, COSTS, Cost, Curve, deviation, metric_of
from launcher_lab.study.results import Results

if TYPE_CHECKING:
    import altair as alt

_PAGE = Path(__file__).with_name("report.html")
# Limits of the page's size: evaluations of all learning curves, and of one curve.
_EVALUATIONS, _FEWEST, _MOST = 6_000, 4, 400
_DIGITS = 5
# Distinct for colour-blind readers; shapes differ too.
_COLOURS = ("#0652a7", "#bc6712", "#008d5b", "#cc79a7", "#ac42f0", "#ce003b", "#000000")
_COSTS: dict[Cost, str] = {
    "time": "training time, minutes",
    "wall": "wall clock, minutes",
    "money": "cost of training",
    "epochs": "epochs",
}
_SETTING = ("dataset", "model", "hardware")
# Keys that the table of runs has as columns.
_COLUMNS = ("epochs", "seed")
_CHOSEN = "!isDefined(chosen.point) || indexof(chosen.point, datum.point) >= 0"
_WIDTH = 700  # px


def write_file(path: Path, write: Callable[[Path], object], option: str = "--output") -> None:
    """Write a file under a temporary name, then rename it.

    Raises UserError, with the option of its path, if it cannot be written.
    """
    try:
        with atomic.writing(path) as temporary:
            write(temporary)
    except OSError as error:
        raise UserError(Problem(f"cannot be written: {reason(error)}", option, path)) from None


def check_packages(path: Path) -> None:
    """Check that the packages of the extra `report` are installed; raises UserError if not."""
    try:
        import altair  # noqa: F401  # note: the import takes two seconds
        import vl_convert  # noqa: F401
    except ImportError:
        message = f"needs the packages of the report; run {how_to_add('altair', 'vl-convert-python')}"
        raise UserError(Problem(message, "--output", path)) from None


def content(results: Results, kind: str, *, title: str, axis: Cost = "time") -> bytes:
    """Return the report as .html, or its tradeoff curves as .png, .svg or .pdf.

    An image of one run without published points beside it is its learning curve.
    """
    import altair as alt
    import vl_convert

    alt.data_transformers.disable_max_rows()
    alone = len(results.runs) == 1 and len(beside(results)) == len(results.curves)
    if kind != ".html":
        chart = _learning(results, None).properties(title=title) if alone else _tradeoff(results, axis, title)
        draw = getattr(vl_convert, f"vegalite_to_{kind[1:]}")
        drawn = draw(chart.to_dict(), **({"scale": 2} if kind == ".png" else {}))
        return marked(drawn.encode() if isinstance(drawn, str) else drawn, kind)
    spec = json.dumps((_tradeoff(results, axis) & _learning(results, _CHOSEN)).to_dict(), separators=(",", ":"))
    library = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").encode()
    page = Template(_PAGE.read_text(encoding="utf-8")).substitute(
        title=text(title),
        # note: a third of the size
        library=base64.b64encode(gzip.compress(library, mtime=0)).decode(),
        # note: only `<` could end the script element
        spec=spec.replace("<", "\\u003c"),
        runs=_runs(results),
    )
    return page.encode()


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


def _points(results: Results) -> Iterator[dict[str, Any]]:
    """Yield a row for each point: its number, curve, quality, costs and source; `good` is higher for a better one."""
    number = 0
    for curve in beside(results):
        for point in curve.points:
            spread = deviation(point.top1) or 0.0
            yield {
                "point": number,
                "curve": curve.name,
                **vars(curve.setting),
                "length": point.epochs,
                "runs": len(point.paths),
                "quality": _short(curve.metric.sign * point.quality),
                "deviation": _short(spread),
                "good": _short(point.quality),
                **{one: _short(point.cost(one)) for one in COSTS},
                "published": curve.source is not None,
                "source": ". ".join(filter(None, [curve.source, point.note])) or "runs",
            }
            number += 1


def _point_of(results: Results) -> dict[Path, int]:
    points = [point for curve in beside(results) for point in curve.points]
    return {path: number for number, point in enumerate(points) for path in point.paths}


def _tradeoff(results: Results, axis: Cost, title: str | None = None) -> alt.LayerChart:
    """Return curves, bars of one deviation, and the front of the points that the filters leave, one of each setting."""
    import altair as alt

    points, scale = [*_points(results)], metric_of(results.all_curves)
    own = [one for one in points if not one["published"]] or points
    known = [one for one in COSTS if any(point[one] is not None for point in own)] or [axis]
    names = list(dict.fromkeys(point["curve"] for point in points))
    cost = alt.param("axis", value=axis, bind=alt.binding_radio(options=known, name="cost "))
    shown = alt.param("published", value=True, bind=alt.binding_checkbox(name="published points "))
    named = alt.selection_point("named", fields=["curve"], bind="legend")
    chosen = alt.selection_point("chosen", fields=["point"])
    selections = [chosen, named]
    base = alt.Chart(alt.Data(values=points, name="points")).transform_calculate(x="datum[axis]")
    base = base.transform_filter("isValid(datum.x) && (published || !datum.published)").transform_filter(named)
    for field in _SETTING:
        values = sorted({str(point[field]) for point in points})
        if len(values) > 1:
            pick = alt.binding_select(options=[None, *values], labels=["all", *values], name=f"{field} ")
            selections.append(one := alt.selection_point(field, fields=[field], bind=pick))
            base = base.transform_filter(one)
    # note: the title of an axis cannot change, that of a chart can
    label = alt.Title(alt.expr(f"{json.dumps(_COSTS)}[axis]"), orient="bottom", fontSize=11)
    logarithmic = alt.Scale(type="log", nice=False, padding=20)
    x = alt.X("x:Q", scale=logarithmic, axis=alt.Axis(title=title and _COSTS[axis], format="~g"))
    y = alt.Y("quality:Q", scale=alt.Scale(zero=False, reverse=scale.sign < 0), title=scale.heading)
    colour = alt.Color(
        "curve:N",
        scale=alt.Scale(domain=names, range=_colours(len(names))),
        legend=alt.Legend(symbolLimit=0, labelLimit=400),
    )
    tips = [
        f"{field}:{'Q' if field in ('quality', 'deviation', *known) else 'N'}"
        for field in ("curve", *_SETTING, "length", "runs", "quality", "deviation", *known, "source")
    ]
    dash = alt.condition("datum.published", alt.value([3, 3]), alt.value([1, 0]))
    lines = base.mark_line().encode(
        x, y, colour, detail=[f"{field}:N" for field in _SETTING], strokeDash=dash, order="x:Q"
    )
    fades = alt.condition(chosen, alt.value(1), alt.value(0.25))
    marks = base.mark_point(filled=True, size=70, cursor="pointer").encode(
        x, y, colour, alt.Shape("curve:N", scale=alt.Scale(domain=names), legend=None), tooltip=tips, opacity=fades
    )
    ends = base.transform_calculate(low="datum.quality - datum.deviation", high="datum.quality + datum.deviation")
    bars = ends.mark_rule().encode(x, alt.Y("low:Q", title=scale.heading), alt.Y2("high:Q"), colour)
    layers = lines + bars + _front(base, results.across).encode(x, y) + marks.add_params(*selections)
    return layers.add_params(cost, shown).properties(width=_WIDTH, height=380, title=title or label)


def _front(base: alt.Chart, across: Collection[str]) -> alt.Chart:
    """Return the front of the points that a chart leaves, one of each setting but for the fields compared across."""
    import altair as alt

    groups = [field for what, field in ACROSS.items() if what not in across]
    best = [alt.WindowFieldDef(op="max", field="good", **{"as": "best"})]
    by_cost = [alt.SortField("x"), alt.SortField("good", order="descending")]
    front = base.transform_window(best, sort=by_cost, frame=[None, 0], groupby=groups)
    front = front.transform_filter("datum.good == datum.best").encode(detail=[f"{field}:N" for field in groups])
    return front.mark_line(color="black", strokeDash=[6, 4], interpolate="step-after")


def _learning(results: Results, filtered: str | None) -> alt.Chart:
    """Return the learning curves of the runs, or of those that pass a filter."""
    import altair as alt

    scale, point_of = metric_of(results.all_curves), _point_of(results)
    limit = max(_FEWEST, min(_MOST, _EVALUATIONS // max(1, len(results.runs))))
    curves = [{"point": point["point"], "curve": point["curve"]} for point in _points(results)]
    names = list(dict.fromkeys(point["curve"] for point in curves))
    runs = [{"r": n, "run": str(run.path), "point": point_of.get(run.path)} for n, run in enumerate(results.runs)]
    rows = [
        {"r": number, "e": _short(one.epoch), "q": _short(run.metric.sign * one.top1)}
        for number, run in enumerate(results.runs)
        for one in thinned(run.evaluations, limit)
    ]
    base = alt.Chart(alt.Data(values=rows)).transform_lookup(
        "r", alt.LookupData(alt.Data(values=runs), "r", ["run", "point"])
    )
    base = base.transform_lookup("point", alt.LookupData(alt.Data(values=curves), "point", ["curve"]))
    if filtered:
        base = base.transform_filter(filtered)
    y = alt.Y("q:Q", scale=alt.Scale(zero=False, reverse=scale.sign < 0), title=scale.heading)
    colour = alt.Color("curve:N", legend=None, scale=alt.Scale(domain=names, range=_colours(len(names))))
    tips = ["run:N", "curve:N", alt.Tooltip("e:Q", title="epoch"), alt.Tooltip("q:Q", title=scale.heading)]
    chart = base.mark_line(point=True).encode(alt.X("e:Q", title="epochs"), y, colour, detail="r:N", tooltip=tips)
    return chart.properties(width=_WIDTH, height=260)


def _colours(count: int) -> list[str]:
    return [_COLOURS[number % len(_COLOURS)] for number in range(max(1, count))]


def thinned(evaluations: Sequence[Evaluated], limit: int) -> list[Evaluated]:
    """Return the finite evaluations; above `limit` the lowest and highest of each interval, first and last.

    The drawn line keeps its envelope (M4, Jugel et al. 2014).
    """
    finite = [one for one in evaluations if math.isfinite(one.top1) and math.isfinite(one.epoch)]
    if len(finite) <= limit:
        return finite
    count, total = max(1, limit // 2 - 1), len(finite)
    stretches = [range(total * number // count, total * (number + 1) // count) for number in range(count)]
    extremes = {pick(stretch, key=lambda at: finite[at].top1) for stretch in stretches for pick in (min, max)}
    return [finite[at] for at in sorted(extremes | {0, total - 1})]


def _runs(results: Results) -> str:
    """Return the values that most runs have, and a table of the runs, each with its command and its other values."""
    point_of = _point_of(results)
    configs = [{key: json.dumps(value, default=str) for key, value in run.values.items()} for run in results.runs]
    counts = Counter((key, value) for config in configs for key, value in config.items())
    common = {key: value for (key, value), count in counts.items() if 2 * count > len(configs)}
    columns = ("run", "state", "model", "data set", "hardware", "epochs", "seed", metric_of(results.all_curves).heading,
               "minutes", "cost of training")  # fmt: skip
    rows = []
    for run, config in zip(results.runs, configs, strict=True):
        own = [f"{key}: {value}" for key, value in config.items() if common.get(key) != value and key not in _COLUMNS]
        own += [f"{key}: -" for key in common if key not in config] if config else []
        quality = run.metric.sign * run.evaluations[-1].top1 if run.evaluations else None
        minutes = run.times.training / 60 if run.times else None
        rows.append([
            _unfolded(str(run.path), [shlex.join(run.command), *own]),
            text(f"{run.state}: {run.problem}" if run.problem else run.state),
            *map(text, (run.model, run.dataset, run.hardware if run.device else "?", run.epochs, run.seed)),
            *("" if value is None else f"{value:.4g}" for value in (quality, minutes, run.money("training"))),
        ])  # fmt: skip
    # note: what all runs share is among the common values
    kept = [
        at
        for at, cells in enumerate(zip(*rows, strict=True))
        if any(cells) and (at not in (2, 3, 4) or len(set(cells)) > 1)
    ]
    lines = [
        f"<tr data-point={point_of.get(run.path, -1)}><td>{'<td>'.join(row[at] for at in kept)}\n"
        for run, row in zip(results.runs, rows, strict=True)
    ]
    head = "".join(f"<th>{text(columns[at])}" for at in kept)
    shared = [f"{key}: {value}" for key, value in common.items()]
    table = f"<table id=runs><thead><tr>{head}</thead>\n<tbody>{''.join(lines)}</tbody></table>"
    title = f"{count_of(len(common), 'value')} of most runs"
    return f"{_unfolded(title, shared)}\n{table}"


def _unfolded(title: str, lines: Sequence[str]) -> str:
    return (
        f"<details><summary>{text(title)}</summary><pre>{html.escape(chr(10).join(lines), quote=False)}</pre></details>"
    )


def _short(number: float | None) -> float | None:
    """Round a number to the page's digits; None if it is not finite."""
    return float(f"{number:.{_DIGITS}g}") if number is not None and math.isfinite(number) else None
