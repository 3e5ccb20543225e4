"""A run's learning curve as an image."""

import math
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from launcher import atomic
from launcher.config.tasks import TaskConfig
from launcher.records.metrics import Row, read_metrics
from launcher.records.run_folder import RunFolder

# Okabe & Ito's colours, which are distinct for colour-blind readers.
_BLUE, _SKY, _ORANGE, _GREEN, _GREY = "#0072B2", "#56B4E9", "#D55E00", "#009E73", "#666666"
_MOST_POINTS = 2000  # of a line: twice the image's width in pixels


def draw_curve(folder: RunFolder, task: TaskConfig, title: str) -> Path:
    """Draw the task's metrics, training loss, learning rate and view over the epochs, atomically."""
    rows = read_metrics(folder.metrics)
    training = [row for row in rows if row["kind"] == "train"]
    training = training[:: 1 + len(training) // _MOST_POINTS]
    evaluations = [row for row in rows if row["kind"] == "eval"]
    figure = Figure(figsize=(8, 6), dpi=120, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    with rc_context({"axes.spines.top": False, "axes.grid": True, "axes.grid.axis": "y", "grid.alpha": 0.25}):
        metrics, loss, schedule = figure.subplots(3, 1, sharex=True, height_ratios=(3, 1.3, 1.3))
        sizes = schedule.twinx()
    _metrics(metrics, evaluations, task, title)
    _line(loss, training, "loss", _ORANGE, "training loss")
    _line(schedule, training, "lr", _GREEN, "learning rate")
    _line(sizes, training, "view", _GREY, task.view_title, linestyle="--")
    sizes.grid(False)
    schedule.set_xlabel("epoch")
    with atomic.writing(folder.curve) as temporary:
        # note: savefig would run the layout twice
        canvas.print_png(temporary)
    return folder.curve


def _metrics(axes: Axes, evaluations: list[Row], task: TaskConfig, title: str) -> None:
    """Draw the primary metric and up to two others of its unit."""
    primary = task.primary
    epochs, scale = [row["epoch"] for row in evaluations], 100 if primary.is_share else 1
    same_unit = [metric for metric in task.metrics if metric.is_share == primary.is_share]
    for metric, colour, width in reversed([*zip(same_unit, (_BLUE, _SKY, _GREY), (2.2, 1.2, 1.2), strict=False)]):
        values = [math.nan if (v := row["metrics"].get(metric.name)) is None else scale * v for row in evaluations]
        axes.plot(epochs, values, color=colour, linewidth=width, marker="o", markersize=3.5, label=metric.title)
    if primary.is_share:
        axes.set_ylim(0, 105)
    axes.set_ylabel(f"{primary.title}, %" if primary.is_share else primary.title)
    axes.set_title(title, loc="left", weight="bold", fontsize=11, parse_math=False)
    axes.legend(loc="lower right", frameon=False)


def _line(axes: Axes, rows: list[Row], key: str, colour: str, label: str, linestyle: str = "-") -> None:
    points = [(row["epoch"], row[key]) for row in rows if row[key] is not None]
    axes.plot([x for x, _ in points], [y for _, y in points], color=colour, linewidth=1.2, linestyle=linestyle)
    axes.set_ylabel(label, color=colour)
