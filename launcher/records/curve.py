"""A run's learning curve as a picture."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from launcher import atomic
from launcher.records.folder import RunFolder
from launcher.records.metrics import Row, read_metrics

# Okabe & Ito's colours, which colour-blind readers can tell apart.
_BLUE, _SKY, _ORANGE, _GREEN, _GREY = "#0072B2", "#56B4E9", "#D55E00", "#009E73", "#666666"


def draw_curve(folder: RunFolder, title: str) -> Path:
    """Draw accuracy, training loss, learning rate and image size over the epochs; written atomically."""
    rows = read_metrics(folder.metrics)
    training = [row for row in rows if row["kind"] == "train"]
    evaluations = [row for row in rows if row["kind"] == "eval"]
    figure = Figure(figsize=(8, 6), dpi=120, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    accuracy, loss, schedule = figure.subplots(3, 1, sharex=True, height_ratios=(3, 1.3, 1.3))
    _accuracy(accuracy, evaluations, title)
    _line(loss, training, "loss", _ORANGE, "training loss")
    _line(schedule, training, "lr", _GREEN, "learning rate")
    sizes = schedule.twinx()
    _line(sizes, training, "image_size", _GREY, "image px", linestyle="--")
    sizes.spines["top"].set_visible(False)
    schedule.set_xlabel("epoch")
    with atomic.writing(folder.curve) as temporary:
        # note: savefig would lay all out twice
        canvas.print_png(temporary)
    return folder.curve


def _accuracy(axes: Axes, evaluations: list[Row], title: str) -> None:
    epochs = [row["epoch"] for row in evaluations]
    for key, colour, width in (("top5", _SKY, 1.2), ("top1", _BLUE, 2.2)):
        values = [100 * row[key] for row in evaluations]
        axes.plot(epochs, values, color=colour, linewidth=width, marker="o", markersize=3.5, label=f"top-{key[3:]}")
        if values and key == "top1":
            axes.annotate(
                f"{values[-1]:.1f} %",
                (epochs[-1], values[-1]),
                textcoords="offset points",
                xytext=(0, -14),
                ha="right",
                color=colour,
                weight="bold",
            )
    axes.set_ylim(0, 105)
    axes.set_ylabel("accuracy, %")
    axes.set_title(title, loc="left", weight="bold", fontsize=11, parse_math=False)
    axes.legend(loc="lower right", frameon=False)
    _tidy(axes)


def _line(axes: Axes, rows: list[Row], key: str, colour: str, label: str, linestyle: str = "-") -> None:
    points = [(row["epoch"], row[key]) for row in rows if row[key] is not None]
    axes.plot([x for x, _ in points], [y for _, y in points], color=colour, linewidth=1.2, linestyle=linestyle)
    axes.set_ylabel(label, color=colour)
    _tidy(axes)


def _tidy(axes: Axes) -> None:
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top"]].set_visible(False)
