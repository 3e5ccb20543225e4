"""Compare a run on machines: prices on demand and spot, the Pareto front, the epochs that a quality needs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lab.predict.machines import gpus
from lab.predict.prediction import Prediction, efficiencies
from lab.study.curves import Cost, Curve
from lab.study.speedup import cost_at, pareto_front
from launcher import atomic
from launcher.config.schema import Hardware
from launcher.errors import Problem, UserError
from launcher.measure.estimate import Span
from launcher.plan.plan import Plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FORMS = (".png", ".svg", ".pdf")
_LINE = 16  # height of a name in pixels
_ON_DEMAND, _SPOT = "#0072B2", "#D55E00"


@dataclass(frozen=True)
class Length:
    """The epochs (also fractional) for a quality, or its minutes on a published machine, and their source."""

    epochs: float | None
    minutes: float | None
    hardware: str
    source: str


def length_for(quality: float, recipe: str, curves: Iterable[Curve]) -> Length:
    """Interpolate the length for a quality in the logarithm of the cost; the user's own curves come first.

    Raises:
        UserError: no curve of the recipe spans the quality.
    """
    own = [curve for curve in curves if curve.recipe == recipe]
    spans = []
    for curve in sorted(own, key=lambda curve: (curve.source is not None, -len(curve.points))):
        known = curve.on("epochs")
        axis: Cost = "epochs" if len(known) == len(curve.points) or len(known) > 1 else "time"
        points = curve.on(axis)
        if not points:
            continue
        costs = np.array([point.cost(axis) for point in points], np.float64)
        qualities = np.array([point.quality for point in points], np.float64)
        spans.append((qualities.min(), qualities.max()))
        cost = float(cost_at(costs, qualities, quality))
        if 0 < cost < np.inf:
            epochs, minutes = (cost, None) if axis == "epochs" else (None, cost)
            hardware = curve.setting.hardware
            return Length(epochs, minutes, hardware, f"{curve.source or 'own runs'}: {recipe} on {hardware}")
    if not spans:
        message = f"{recipe} has no published point and no finished run below runs=; set epochs= instead"
        raise UserError(Problem(message, "--quality", quality))
    least, most = min(low for low, _ in spans), max(high for _, high in spans)
    raise UserError(
        Problem(f"the curves of {recipe} span {least:g} to {most:g} %; set one of these", "--quality", quality)
    )


@dataclass(frozen=True)
class Offer:
    """A run on a machine at one of its prices: seconds and money with their ranges; `front`: on the Pareto front."""

    machine: Hardware
    spot: bool
    wall: Span
    cost: Span | None
    prediction: Prediction
    problem: str = ""
    front: bool = False


def offers(plan: Plan, prediction: Prediction, problem: str) -> list[Offer]:
    """Return the offer on demand, and as a spot machine if it has a spot price."""
    machine, wall = prediction.machine, prediction.estimate.wall
    price = machine.price_per_hour
    cost = None if price is None else _times(wall, price / 3600)
    offers = [Offer(machine, False, wall, cost, prediction, problem)]
    if machine.spot_per_hour is not None:
        spot = _times(wall, _interrupted(plan, prediction))
        offers.append(Offer(machine, True, spot, _times(spot, machine.spot_per_hour / 3600), prediction, problem))
    return offers


def _times(span: Span, factor: float) -> Span:
    return Span(span.seconds * factor, span.low * factor, span.high * factor)


def _interrupted(plan: Plan, prediction: Prediction) -> float:
    """Return the factor for assumed preemptions: each costs the restart and half a checkpoint interval."""
    assumed = efficiencies()["spot"]
    between = plan.every(plan.config.checkpoint.every) * prediction.estimate.training.seconds / plan.total_steps
    lost = 60 * float(assumed["minutes_until_restart"]) + between / 2
    return 1 + float(assumed["interruptions_an_hour"]) * lost / 3600


def with_front(offers: Sequence[Offer]) -> list[Offer]:
    """Sort offers by cost and mark the Pareto front; offers that cannot run or have no price come last."""
    able = [offer for offer in offers if offer.cost is not None and not offer.problem]
    front = {id(able[i]) for i in pareto_front([(_money(offer), -offer.wall.seconds) for offer in able])}
    marked = [Offer(**{**vars(offer), "front": id(offer) in front}) for offer in offers]
    return sorted(marked, key=lambda offer: (bool(offer.problem), offer.cost is None, _money(offer)))


def _money(offer: Offer) -> float:
    return offer.cost.seconds if offer.cost else 0.0


def memory_problem(plan: Plan, prediction: Prediction) -> str:
    """Return why a step does not fit into a GPU's memory and what would fit; empty if it fits."""
    if prediction.fits:
        return ""
    held = plan.rank_batch // plan.accumulation
    gpu = gpus()[str(prediction.machine.gpu)]
    most = held * efficiencies()["assumed"]["memory"] * gpu.memory / prediction.memory_gigabytes
    parts = [n for n in range(1, plan.rank_batch + 1) if plan.rank_batch % n == 0 and n <= most]
    hint = f"device_batch_size={parts[-1]} fits" if parts else "not even one fits"
    return f"{held} images at once need {prediction.memory_gigabytes:.0f} GB of a GPU's {gpu.memory:g}; {hint}"


def draw_offers(offers: Sequence[Offer], path: Path, *, title: str) -> None:
    """Draw one point per offer, ranges as bars, and the Pareto front as a line.

    Raises:
        UserError: the name has no image format, or the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # note: the import takes most of a second
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    if path.suffix not in _FORMS:
        raise UserError(Problem(f"must end with {', '.join(_FORMS)}", "--image", path))
    figure = Figure(figsize=(9, 6), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set(xscale="log", yscale="log")
    axes.margins(x=0.26)  # note: space for the names left of the points
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
    figure.draw_without_rendering()  # note: determines the positions of the points
    _name(axes, front)
    try:
        with atomic.writing(path) as temporary:
            figure.savefig(temporary, format=path.suffix[1:])
    except OSError as error:
        raise UserError(Problem(f"cannot be written: {error.strerror}", "--image", path)) from None


def _draw_front(axes: Axes, front: Sequence[Offer]) -> None:
    points = sorted((offer.wall.seconds / 60, offer.cost.seconds) for offer in front if offer.cost)
    label = "no other is both cheaper and faster"
    if points:
        axes.plot(*zip(*points, strict=True), color="black", linestyle="--", linewidth=1, label=label)


def _name(axes: Axes, front: Sequence[Offer]) -> None:
    """Draw the names of the machines on the front, left of and below their points; crowded names are stacked."""
    points = [(offer.wall.seconds / 60, offer.cost.seconds, offer.machine.name) for offer in front if offer.cost]
    free = math.inf
    for minutes, cost, name in sorted(points, key=lambda point: -point[1]):
        x, y = axes.transData.transform((minutes, cost))
        free = min(y - _LINE / 2, free - _LINE)
        place = (x - _LINE / 2, free)
        axes.annotate(name, place, xycoords="figure pixels", fontsize=8, ha="right", va="center")
