"""The result of a learning-rate range test: the learning rate to use, and the curve as an image."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from lab.study.report import COLOURS, GREY, write_file

# Learning rate and loss of each step, from the lowest rate on.
Points = Sequence[tuple[float, float]]
_AROUND = 3  # steps on each side of a mean
# A loss that falls by less than this fraction gives no learning rate.
_LEAST_FALL = 0.02
_BELOW = 10.0


def smoothed(points: Points) -> list[float]:
    """Return the mean loss around each step."""
    losses = [loss for _, loss in points]
    return [statistics.fmean(losses[max(0, step - _AROUND) : step + _AROUND + 1]) for step in range(len(losses))]


def suggested(points: Points) -> float | None:
    """Return a tenth of the learning rate at which the smoothed loss is lowest; None if the loss does not fall."""
    losses = smoothed(points)
    if not losses or min(losses) > (1 - _LEAST_FALL) * losses[0]:
        return None
    return points[losses.index(min(losses))][0] / _BELOW


def draw(points: Points, chosen: float | None, path: Path, *, title: str) -> None:
    """Draw the losses over the learning rate, and the one to use, as PNG.

    Raises:
        UserError: the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # note: the import takes most of a second
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5.5), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    rates = [rate for rate, _ in points]
    losses = smoothed(points)
    axes.plot(rates, [loss for _, loss in points], ".", color=GREY, markersize=4, label="each step")
    axes.plot(rates, losses, color=COLOURS[0], linewidth=2, label="mean of seven steps")
    if chosen is not None:
        axes.axvline(chosen, color=COLOURS[1], linestyle="--", label=f"learning rate {chosen:.2g}")
    if losses:
        # note: the last losses, of a run that diverges, would flatten all others
        low, first = min(losses), losses[0]
        axes.set_ylim(low - 0.2 * (first - low), first + 0.5 * (first - low))
        axes.set_xscale("log")
    axes.set_xlabel("learning rate")
    axes.set_ylabel("training loss")
    axes.set_title(title, loc="left", weight="bold", fontsize=11, parse_math=False)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    write_file(path, lambda temporary: figure.savefig(temporary, format="png"))
