"""Money against time of offered machines, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from launcher import atomic
from launcher.errors import Problem, UserError
from launcher.measure.choose import Offer

_FORMS = (".png", ".svg", ".pdf")
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
    able = [offer for offer in offers if offer.cost and not offer.problem]
    for spot, colour, marker in ((False, _ON_DEMAND, "o"), (True, _SPOT, "^")):
        shown = [(o.wall.seconds / 60, o.cost.seconds) for o in able if o.spot == spot and o.cost]
        if shown:
            minutes, costs = zip(*shown, strict=True)
            axes.scatter(minutes, costs, c=colour, marker=marker, label="spot" if spot else "on demand")
    front = sorted((o.wall.seconds / 60, o.cost.seconds, o.machine.name) for o in able if o.front and o.cost)
    if front:
        axes.plot(
            [x for x, _, _ in front],
            [y for _, y, _ in front],
            color="black",
            linestyle="--",
            linewidth=1,
            label="no other is both cheaper and faster",
        )
    for x, y, name in front:
        axes.annotate(name, (x, y), fontsize=8, xytext=(4, 4), textcoords="offset points")
    axes.set(xscale="log", yscale="log", xlabel="wall clock, minutes", ylabel="cost", title=title)
    if able:
        axes.legend()
    try:
        with atomic.writing(path) as temporary:
            figure.savefig(temporary, format=path.suffix[1:])
    except OSError as error:
        raise UserError(Problem(f"cannot be written: {error.strerror}", "--picture", path)) from None
