"""Quality against cost as a picture."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from lab.study.curves import Cost, Curve, deviation
from lab.study.results import Results, fronts

# The page's (page/state.js), which colour-blind readers can tell apart; the marker's shape says the same again.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8833FF", "#DD0044", "#000000")
_MARKERS = "osD^vP*"
_GREY = "#767676"
_LABELS: dict[Cost, str] = {
    "time": "training time, minutes",
    "wall": "wall clock, minutes",
    "money": "USD",
    "epochs": "epochs",
}
_MOST_NAMED = 16


def draw_tradeoff(results: Results, path: Path, *, title: str, axis: Cost) -> None:
    """Curves with bars of one standard deviation, published ones in grey, and the Pareto front of each setting."""
    figure = Figure(figsize=(8, 5.5), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    shown = [curve for curve in results.all_curves if curve.on(axis)]
    for colours, published in ((_COLOURS, False), ((_GREY,), True)):
        for number, curve in enumerate(c for c in shown if (c.source is not None) == published):
            colour, marker = colours[number % len(colours)], _MARKERS[number % len(_MARKERS)]
            _draw(axes, curve, axis, colour, marker, name=curve.label(results.across))
    for front in fronts(shown, axis, results.across).values():
        _, costs, qualities = zip(*front, strict=True)
        axes.plot(costs, qualities, color="black", linestyle="--", linewidth=1.2, zorder=1)
    if shown:
        axes.set_xscale("log")
    axes.set_xlabel(_LABELS[axis])
    axes.set_ylabel("top-1, %")
    axes.set_title(title, loc="left", weight="bold", fontsize=11)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if 0 < len(shown) <= _MOST_NAMED:
        axes.legend(fontsize=8, frameon=False)
    # note: the temporary name's suffix says nothing of the format
    figure.savefig(path, format="png")


def _draw(axes: Axes, curve: Curve, axis: Cost, colour: str, marker: str, *, name: str) -> None:
    points = curve.on(axis)
    published = curve.source is not None
    axes.errorbar(
        [point.cost(axis) or 0.0 for point in points],
        [point.quality for point in points],
        xerr=[deviation(point.costs[axis]) or 0.0 for point in points],
        yerr=[deviation(point.top1) or 0.0 for point in points],
        color=colour,
        marker=marker,
        markerfacecolor="white" if published else colour,
        markersize=5,
        linewidth=1.0 if published else 1.6,
        capsize=2,
        label=name + (" (published)" if published else ""),
    )
