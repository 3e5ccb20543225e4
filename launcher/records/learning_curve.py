"""A run's learning curve as an image."""

import math
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from launcher.config.tasks import TaskConfig
from launcher.errors import one_line
from launcher.files import atomic
from launcher.records.metrics import Row, read_metrics
from launcher.records.run_folder import RunFolder

# Okabe & Ito's colours, which are distinct for colour-blind readers.
_BLUE, _ORANGE, _GREEN, _GREY = "#0072B2", "#D55E00", "#009E73", "#666666"
_STYLES = ((_BLUE, "-", 2.4), (_ORANGE, "--", 1.4), (_GREEN, ":", 1.6))
_MOST_POINTS = 2000  # of a line: twice the image's width in pixels


def draw_curve(folder: RunFolder, task: TaskConfig, title: str) -> Path:
    """Draw the task's metrics, training loss, learning rate and, if it changes, view over the epochs, atomically."""
    rows = read_metrics(folder.metrics)
    training = [row for row in rows if row["kind"] == "train"]
    training = training[:: 1 + len(training) // _MOST_POINTS]
    evaluations = [row for row in rows if row["kind"] == "eval"]
    panels = [("loss", _ORANGE, "training loss"), ("lr", _GREEN, "learning rate")]
    if len({row["view"] for row in training}) > 1:
        panels.append(("view", _GREY, task.view_title))
    figure = Figure(figsize=(8, 4 + len(panels)), dpi=120, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    with rc_context({"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25}):
        metrics, *others = figure.subplots(1 + len(panels), 1, sharex=True, height_ratios=(3, *(1.2 for _ in panels)))
    _metrics(metrics, evaluations, task)
    for axes, (key, colour, label) in zip(others, panels, strict=True):
        _line(axes, training, key, colour, label)
    others[-1].set_xlabel("epoch")
    heading = [f"{one_line(folder.path.name)} \u00b7 {title}", *_best(evaluations, task)]
    metrics.set_title("\n".join(heading), loc="left", weight="bold", fontsize=11, parse_math=False)
    with atomic.writing(folder.curve) as temporary:
        # note: savefig would run the layout twice
        canvas.print_png(temporary)
    return folder.curve


def _best(evaluations: list[Row], task: TaskConfig) -> list[str]:
    """Return the best and the last value of the primary metric; nothing without an evaluation."""
    primary = task.primary
    values = [row["metrics"].get(primary.name) for row in evaluations]
    if (best := primary.best(values)) is None:
        return []
    at = evaluations[values.index(best)]["epoch"]
    return [f"{primary.title}: best {primary.text(best)} at epoch {at:g}, last {primary.text(values[-1])}"]


def _metrics(axes: Axes, evaluations: list[Row], task: TaskConfig) -> None:
    """Draw the primary metric and, if it is a share, up to two others; metrics with the same values are one line."""
    primary = task.primary
    epochs, scale = [row["epoch"] for row in evaluations], 100 if primary.is_share else 1
    lines: dict[tuple[float | None, ...], list[str]] = {}
    for metric in task.metrics if primary.is_share else [primary]:
        if metric.is_share == primary.is_share:
            recorded = (row["metrics"].get(metric.name) for row in evaluations)
            line = tuple(None if value is None else round(scale * value, 6) for value in recorded)
            lines.setdefault(line, []).append(metric.title)
    for (line, titles), (colour, style, width) in zip(lines.items(), _STYLES, strict=False):
        values = [math.nan if value is None else value for value in line]
        axes.plot(
            epochs, values, color=colour, linewidth=width, linestyle=style, marker="o", markersize=3.5,
            label=" = ".join(titles),
        )  # fmt: skip
    axes.set_ylabel("%" if primary.is_share else primary.title)
    if primary.is_share:
        axes.set_ylim(0, 105)
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.03), ncols=len(_STYLES), frameon=False, borderaxespad=0)


def _line(axes: Axes, rows: list[Row], key: str, colour: str, label: str) -> None:
    points = [(row["epoch"], row[key]) for row in rows if row[key] is not None]
    # note: a line of one point is not visible
    marker = "o" if len(points) == 1 else None
    axes.plot(
        [x for x, _ in points], [y for _, y in points], color=colour, linewidth=1.2, marker=marker, markersize=3.5
    )
    axes.set_ylabel(label)
