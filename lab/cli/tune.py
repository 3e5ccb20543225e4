"""`train tune SPACE`: quasi-random trials of a search space, one run after another; goes on where it was stopped."""

from __future__ import annotations

import argparse
import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from lab.study.sweep import MOST_RUNS, check_existing
from lab.study.tuning import TrialResult, is_finished, read_space, results, trials, words
from launcher.config.compose import compose
from launcher.config.overrides import word_of
from launcher.console import console
from launcher.errors import DONE, INTERRUPTED, TERMINATED, Problem, UserError
from launcher.records.folder import RunFolder
from launcher.records.progress import duration

EXAMPLES = [
    "train tune adamw_narrow recipe=mild dataset.path=/data/imagenet --trials 5 --studies 3",
    "train tune space.yaml dataset=shapes epochs=3 target=top1:0.9",
    "train tune adamw_broad recipe=baseline --list",
]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("space", metavar="SPACE", help="a YAML file of ranges and lists, or one of conf/tuning")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="what all trials have in common")
    parser.add_argument("--trials", type=int, default=5, metavar="N", help="of each study (default: 5)")
    parser.add_argument("--studies", type=int, default=1, metavar="N", help="with a seed each (default: 1)")
    parser.add_argument("--list", action="store_true", help="print the trials and run nothing")
    parser.add_argument("--json", action="store_true", help="print the results so far as JSON and run nothing")


def main(arguments: argparse.Namespace) -> int:
    counts = {"--trials": arguments.trials, "--studies": arguments.studies}
    for flag, count in counts.items():
        if count < 1:
            raise UserError(Problem("must be at least 1", flag, count))
    if arguments.trials * arguments.studies > MOST_RUNS:
        flag = max(counts, key=counts.__getitem__)
        raise UserError(Problem(f"makes more than {MOST_RUNS:,} runs in all", flag, counts[flag]))
    space = read_space(arguments.space)
    common = compose(arguments.overrides).config
    found = trials(space, studies=arguments.studies, each=arguments.trials, seed=common.seed)
    runs = Path(common.runs) / f"tune-{space.name}"
    commands = {
        trial.name: [
            *arguments.overrides,
            *words(trial, common.seed),
            word_of("runs", str(runs)),
            f"run_name={trial.name}",
        ]
        for trial in found
    }
    for name, command in commands.items():
        # note: a value out of bounds, and a trial of something else, is told before the first trial runs
        check_existing(runs / name, compose(command).config)
    if arguments.list:
        for command in commands.values():
            print(shlex.join(["train", *command]))
        return 0
    for name, command in commands.items():
        code = 0 if arguments.json else _run(RunFolder(runs / name), command)
        if code in (INTERRUPTED, TERMINATED):
            return code
    goal = common.task.goal(common.target) if common.target else None
    ended = results(found, runs, goal)
    if arguments.json:
        print(json.dumps([{**asdict(result), "command": commands[result.trial.name]} for result in ended], indent=2))
    else:
        console().print(_table(ended, common.target))
    return 0


def _run(folder: RunFolder, command: list[str]) -> int:
    """Start a trial, go on with it, or leave it alone when it is done; the next ones follow even if it fails."""
    from launcher.launch.start import resume, start

    if not folder.config.is_file():
        return start(compose(command))
    return DONE if is_finished(folder) else resume(folder)


def _table(found: list[TrialResult], target: str | None) -> Table:
    first = found[0].trial.values
    varied = [key for key in first if len({str(result.trial.values[key]) for result in found}) > 1]
    seconds = f"to {target}" if target else "training"
    table = Table("trial", *varied, "best top-1", seconds, box=None, header_style="bold")
    for result in found:
        values = (_shown(result.trial.values[key]) for key in varied)
        top1 = "-" if result.top1 is None else f"{result.top1:.2%}"
        table.add_row(result.trial.name, *values, top1, "-" if result.seconds is None else duration(result.seconds))
    return table


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
