"""`train curve recipe=A,B epochs=... seed=...`: train the grid of a tradeoff curve, here or as a Slurm job array."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from launcher.console import console, only_json, print_json, verbatim
from launcher_lab.cli.grid import ALL_FOLDS, MOST_RUNS, add_options, expand, on_a_recipe, train
from launcher_lab.cli.grid_job import take_job_words
from launcher_lab.cli.training import Cell
from launcher_lab.cli.trials import TRIALS, points, ranked, result, show_results, without_trials

EXAMPLES = [
    "train curve recipe=baseline,mild,medium epochs=18,36,72 seed=0,1,2 dataset.path=/data/imagenet",
    "train curve recipe=mild model=resnet18 dataset=shapes launch=cpu batch_size=64 epochs=3,6,9 seed=0,1 runs=study",
    "train curve recipe=hot algorithms.sam.interval=5,10 epochs=180,450 dataset.path=/data/imagenet",
    "train curve recipe=mild dataset.path=/data/flowers dataset.folds=5 dataset.fold=all",
    "train curve 'optimizer.lr=tag(log,interval(0.5,4))' trials=8 recipe=mild dataset.path=/data/imagenet",
    "train curve --slurm recipe=mild,hot epochs=36,72 seed=0,1 dataset.path=/data/imagenet submit.time=08:00:00",
]


def configure(parser: argparse.ArgumentParser) -> None:
    add_options(parser)
    values = "values of the runs, several separated by commas; epochs dilate the recipe's schedule unless "
    values += "schedule.dilate is set; finished runs are skipped, interrupted runs resume; trials=8 takes as many "
    values += "values of key=interval(0.1,1), and prints the best first"
    parser.add_argument("overrides", nargs="+", metavar="key=a,b", help=values)


def main(arguments: argparse.Namespace) -> int:
    job_words = take_job_words(arguments)
    arguments.overrides, trials = without_trials(arguments.overrides)
    drawn = points(arguments.overrides, trials, MOST_RUNS)
    arguments.overrides = on_a_recipe("curve", arguments, drawn[0])
    cells = expand(arguments.overrides, points=drawn)
    outcomes: dict[Path, str] = {}
    number = [] if trials is None else [f"{TRIALS}={trials}"]
    commands = (["curve", *arguments.overrides, *number], ["compare", cells[0].composed.config.runs])
    with only_json(arguments.json):
        code = train(cells, arguments, commands, job_words, outcomes)
        if code is None:
            out = console()
            counts = Counter(outcomes.values())
            out.print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
            if trials is not None and not arguments.slurm:
                show_results(cells, [*drawn[0]])
            if ALL_FOLDS in arguments.overrides and not counts["failed"]:
                _print_out_of_fold(cells)
            out.print(verbatim(f"to compare the runs: train compare {quote(str(cells[0].composed.config.runs))}"))
            code = 1 if counts["failed"] else 0
    if arguments.json:
        runs = [
            {
                "path": one.cell.folder,
                "words": one.cell.words,
                "outcome": outcomes.get(one.cell.folder),
                "top1": one.top1,
                "seconds": one.seconds,
            }
            for one in (ranked(cells) if trials else map(result, cells))
        ]
        print_json({"runs": runs})
    return code


def _print_out_of_fold(cells: Sequence[Cell]) -> None:
    """Write the predictions out of fold of each set of runs that differ in their fold alone."""
    # note: imports torch, so only after all runs
    from launcher.look.out_of_fold import name_without_fold, write_out_of_fold

    sets: dict[str, list[Path]] = {}
    for cell in cells:
        sets.setdefault(name_without_fold(cell.folder), []).append(cell.folder)
    out = console()
    for folders in sets.values():
        out.print(verbatim(f"{write_out_of_fold(folders)}"))
