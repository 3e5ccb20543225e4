"""`train curve recipe=A,B epochs=... seed=...`: train the grid of a tradeoff curve, here or as a Slurm job array."""

from __future__ import annotations

import argparse
import math
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.console import console, only_json, print_json, table, verbatim
from launcher.records.metrics import reached
from launcher.records.progress import duration
from launcher.records.run import read_run
from launcher_lab.cli.grid import ALL_FOLDS, TRIALS, Cell, expand, on_a_recipe, points, without_trials
from launcher_lab.cli.grid_job import take_job_words
from launcher_lab.cli.training import add_options, train

EXAMPLES = [
    "train curve recipe=baseline,mild,medium epochs=18,36,72 seed=0,1,2 dataset.path=/data/imagenet",
    "train curve recipe=mild model=resnet18 dataset=shapes launch=cpu batch_size=64 epochs=3,6,9 seed=0,1 runs=study",
    "train curve recipe=hot algorithms.sam.interval=5,10 epochs=180,450 dataset.path=/data/imagenet",
    "train curve recipe=mild dataset.path=/data/flowers dataset.folds=5 dataset.fold=all",
    "train curve 'optimizer.lr=tag(log,interval(0.5,4))' trials=8 recipe=mild dataset.path=/data/imagenet",
    "train curve --slurm recipe=mild,hot epochs=36,72 seed=0,1 dataset.path=/data/imagenet submit.time=08:00:00",
]


@dataclass(frozen=True)
class Result:
    """A run's best value of the task's first metric, and its training seconds to the target, or else to the end."""

    cell: Cell
    top1: float | None
    seconds: float | None


def configure(parser: argparse.ArgumentParser) -> None:
    add_options(parser)
    values = "values of the runs, several separated by commas; epochs dilate the recipe's schedule unless "
    values += "schedule.dilate is set; finished runs are skipped, interrupted runs resume; trials=8 takes as many "
    values += "values of key=interval(0.1,1), and prints the best first"
    parser.add_argument("overrides", nargs="+", metavar="key=a,b", help=values)


def main(arguments: argparse.Namespace) -> int:
    job_words = take_job_words(arguments)
    arguments.overrides, trials = without_trials(arguments.overrides)
    drawn = points(arguments.overrides, trials)
    arguments.overrides = on_a_recipe("curve", arguments, drawn[0])
    cells = expand(arguments.overrides, points=drawn)
    outcomes, runs = dict[Path, str](), cells[0].composed.config.runs
    number = [] if trials is None else [f"{TRIALS}={trials}"]
    commands = (["curve", *arguments.overrides, *number], ["compare", runs])
    with only_json(arguments.json):
        code = train(cells, arguments, commands, job_words, outcomes)
        if code is None:
            out, counts = console(), Counter(outcomes.values())
            out.print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
            if trials is not None:
                _show_best(cells, [*drawn[0]])
            if ALL_FOLDS in arguments.overrides and not counts["failed"]:
                _print_out_of_fold(cells)
            out.print(verbatim(f"to compare the runs: train compare {shlex.quote(runs)}"))
            code = 1 if counts["failed"] else 0
    if arguments.json:
        results = ranked(cells) if trials else map(_result, cells)
        print_json({"runs": [_as_json(one, outcomes.get(one.cell.folder)) for one in results]})
    return code


def ranked(cells: Sequence[Cell]) -> list[Result]:
    """Return the results, the best first, or with a target the fastest first."""
    config = cells[0].composed.config

    def order(one: Result) -> tuple[float, float]:
        seconds = math.inf if config.target is None or one.seconds is None else one.seconds
        return seconds, math.inf if one.top1 is None else config.task.primary.gain(0.0, one.top1)

    return sorted(map(_result, cells), key=order)


def _result(cell: Cell) -> Result:
    """Return the result of a run so far."""
    task, target = cell.composed.config.task, cell.composed.config.target
    run = read_run(cell.folder)
    last = next((row for row in reversed(run.rows) if row["kind"] == "eval"), None)
    at = reached(run.rows, task.goal(target)) if target else last
    return Result(cell, run.best.value if run.best else None, at["train_seconds"] if at else None)


def _as_json(one: Result, outcome: str | None) -> dict[str, object]:
    own = {"path": one.cell.folder, "words": one.cell.words, "outcome": outcome}
    return {**own, "top1": one.top1, "seconds": one.seconds}


def _show_best(cells: Sequence[Cell], keys: Sequence[str]) -> None:
    """Print the results, the best first, and the line that trains with the values of the best."""
    config, ordered, out = cells[0].composed.config, ranked(cells), console()
    primary = config.task.primary
    shown = table("run", *keys, f"best {primary.title}", f"to {config.target}" if config.target else "training")
    for one in ordered:
        values = dict(word.split("=", 1) for word in one.cell.words)
        top1 = "-" if one.top1 is None else primary.text(one.top1)
        time = "-" if one.seconds is None else duration(one.seconds)
        shown.add_row(verbatim(one.cell.folder.name), *(values[key] for key in keys), top1, time)
    out.print(shown)
    if ordered[0].top1 is not None:
        words = [word for word in ordered[0].cell.words if not word.startswith("run_name=")]
        out.print(verbatim(f"the best: train {shlex.join(words)}"))


def _print_out_of_fold(cells: Sequence[Cell]) -> None:
    """Write the predictions out of fold of each set of runs that differ in their fold alone."""
    # note: imports torch, so only after all runs
    from launcher.look.out_of_fold import name_without_fold, write_out_of_fold

    sets: dict[str, list[Path]] = {}
    for cell in cells:
        sets.setdefault(name_without_fold(cell.folder), []).append(cell.folder)
    for folders in sets.values():
        console().print(verbatim(f"{write_out_of_fold(folders)}"))
