"""`train lr-find`: find a learning rate by training some steps at rising ones."""

import argparse
import itertools
import statistics
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

from rich.table import Table

from launcher.config.choices import ScheduleConfig
from launcher.config.compose import compose
from launcher.config.schema import RunConfig
from launcher.console import console, facts, print_json
from launcher.counts import count_of
from launcher.errors import Problem, UserError
from launcher.measure.launch import measure, prepare_here
from launcher.outputs import check_file, image_options
from launcher.plan.plan import Plan
from launcher.schedules.constant import Constant
from launcher_lab.study.report import COLOURS, GREY, drawing, write_file

EXAMPLES = [
    "train lr-find recipe=small dataset.path=/data/flowers",
    "train lr-find recipe=finetune dataset.path=/data/flowers model=resnet50 model.weights=torchvision --steps 500",
    "train lr-find recipe=mild dataset=shapes model=resnet18 launch=cpu batch_size=64 -o rates.png",
]
_FEWEST, _MOST = 20, 10_000
# Learning rate and loss of each step, from the lowest rate on.
Points = Sequence[tuple[float, float]]
_AROUND = 3  # steps on each side of a mean
# A loss that falls by less than this fraction gives no learning rate.
_LEAST_FALL = 0.02
_BELOW = 10.0


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument(
        "--steps", type=int, default=200, metavar="N", help="training steps, one rate each (default: 200)"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="the image (default: runs/lr_find.png, or -2 and so on)")
    parser.add_argument("--json", action="store_true", help="as one JSON object")


def main(arguments: argparse.Namespace) -> int:
    if not _FEWEST <= arguments.steps <= _MOST:
        raise UserError(Problem(f"must be from {_FEWEST} to {_MOST:,}", "--steps", arguments.steps))
    composed = arguments.composed or compose(arguments.overrides)
    if arguments.output:
        check_file(Path(arguments.output))
    prepared = prepare_here(composed)
    plan, config = prepared.plan, prepared.plan.config
    if plan.total_steps < _FEWEST:
        message = f"gives {count_of(plan.total_steps, 'step')}, but the test needs {_FEWEST}; set more epochs"
        raise UserError(Problem(message, "epochs", config.epochs))
    rising = replace(prepared, plan=replace(plan, config=_at_constant_rate(config)))
    steps = min(arguments.steps, plan.total_steps)
    points = measure(rising, "launcher_lab.predict.lr_range:work", steps, list[tuple[float, float]])
    chosen = suggested(points)
    word = None if chosen is None else f"optimizer.lr={chosen / _scale(plan):.2g}"
    path = Path(arguments.output) if arguments.output else _unused(Path(config.runs))
    title = f"{config.recipe or 'no recipe'}, {config.model.architecture}, batch {plan.batch_size}"
    draw(points, chosen, path, title=title)
    if arguments.json:
        print_json({"points": points, "lr": chosen, "word": word, "image": str(path)})
    else:
        console().print(_facts(points, word, path, complete=len(points) == steps))
    return 0


def _unused(runs: Path) -> Path:
    """Return a path of the image that no earlier search has used."""
    paths = (runs / f"lr_find-{number}.png" for number in itertools.count(2))
    return next(path for path in itertools.chain([runs / "lr_find.png"], paths) if not path.exists())


def _at_constant_rate(config: RunConfig) -> RunConfig:
    """Return the config without warmup, decay and scaling of the learning rate."""
    common = {field.name: getattr(config.schedule, field.name) for field in fields(ScheduleConfig)}
    schedule = Constant(**{**common, "warmup": "0ba", "name": "constant"})
    return replace(config, schedule=schedule, optimizer=replace(config.optimizer, scale_lr="off"))


def _scale(plan: Plan) -> float:
    """Return the peak learning rate at `optimizer.lr=1`."""
    return replace(plan, config=replace(plan.config, optimizer=replace(plan.config.optimizer, lr=1.0))).peak_lr


def _facts(points: Points, word: str | None, path: Path, *, complete: bool) -> Table:
    losses = smoothed(points)
    low = losses.index(min(losses))
    end = "" if complete else ", where the loss diverged"
    learned = f"{word}, a tenth of that rate" if word else "none: the loss does not fall; try --steps 1000"
    return facts(
        [
            ("steps", f"{len(points)}, at learning rates of {points[0][0]:.2g} to {points[-1][0]:.2g}{end}"),
            ("lowest loss", f"{losses[low]:.4g} at {points[low][0]:.2g}; {losses[0]:.4g} at first"),
            ("to type", learned),
            ("image", str(path)),
        ]
    )


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

    Raises UserError if the file cannot be written.
    """
    figure, axes = drawing(title, "learning rate", "training loss")
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
    axes.legend(frameon=False)
    write_file(path, lambda temporary: figure.savefig(temporary, **image_options()))
