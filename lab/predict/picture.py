"""Money against time of offered machines, as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from lab.predict.choose import Offer
from launcher import atomic
from launcher.errors import Problem, UserError

_FORMS = (".png", ".svg", ".pdf")
_LINE = 16  # pixels that a name is high
_ON_DEMAND, _SPOT = "#0072B2", "#D55E00"


def draw_offers(offers: Sequence[Offer], path: Path, *, title: str) -> None:
    """A point an offer, the range of both as bars, and the Pareto front as a line.

    Raises:
        UserError: the name ends with no form of picture, or cannot be written.
    """
    if path.suffix not in _FORMS:
        raise UserError(Problem(f"must end with {', '.join(_FORMS)}", "--picture", path))
    figure = Figure(figsize=(9, 6), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set(xscale="log", yscale="log")
    axes.margins(x=0.26)  # note: for the names, which stand to the left of their points
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
    able = [offer for offer in offers if offer.cost and not offer.problem]
    for spot, colour, marker in ((False, _ON_DEMAND, "o"), (True, _SPOT, "^")):
        shown = [(o.wall.seconds / 60, o.cost.seconds) for o in able if o.spot == spot and o.cost]
        if shown:
            minutes, costs = zip(*shown, strict=True)
            axes.scatter(minutes, costs, c=colour, marker=marker, label="spot" if spot else "on demand")
    front = [offer for offer in able if offer.front]
    _draw_front(axes, front)
    axes.set(
        xlabel="wall clock, minutes", ylabel=f"cost, {front[0].machine.currency}" if front else "cost", title=title
    )
    if able:
        figure.legend(loc="outside lower center", ncols=3)
    figure.draw_without_rendering()  # note: where points lie is settled then
    _name(axes, front)
    try:
        with atomic.writing(path) as temporary:
            figure.savefig(temporary, format=path.suffix[1:])
    except OSError as error:
        raise UserError(Problem(f"cannot be written: {error.strerror}", "--picture", path)) from None


def _draw_front(axes: Axes, front: Sequence[Offer]) -> None:
    points = sorted((offer.wall.seconds / 60, offer.cost.seconds) for offer in front if offer.cost)
    label = "no other is both cheaper and faster"
    if points:
        axes.plot(*zip(*points, strict=True), color="black", linestyle="--", linewidth=1, label=label)


def _name(axes: Axes, front: Sequence[Offer]) -> None:
    """Machines of the front, left of their points and below, where no point can be; in lines where they crowd."""
    points = [(offer.wall.seconds / 60, offer.cost.seconds, offer.machine.name) for offer in front if offer.cost]
    free = math.inf
    for minutes, cost, name in sorted(points, key=lambda point: -point[1]):
        x, y = axes.transData.transform((minutes, cost))
        free = min(y - _LINE / 2, free - _LINE)
        place = (x - _LINE / 2, free)
        axes.annotate(name, place, xycoords="figure pixels", fontsize=8, ha="right", va="center")
