"""`train tune SPACE`: run quasi-random trials of a search space; the same command resumes.

Trials are points of a Halton sequence, as in AlgoPerf's external tuning.
"""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from launcher import paths
from launcher.config.compose import compose
from launcher.config.keys import all_keys, nearest_key
from launcher.config.overrides import word_of
from launcher.config.similar import did_you_mean
from launcher.config.tasks import Goal, Metric
from launcher.config.yaml_file import read_mapping
from launcher.console import console, print_json, table
from launcher.data.listing import is_file
from launcher.errors import Problem, UserError
from launcher.records.metrics import is_finished, reached, read_metrics
from launcher.records.progress import duration
from launcher.records.run_folder import RunFolder
from launcher_lab.cli.curve import MOST_RUNS, as_started, check_all, check_existing, on_a_recipe
from launcher_lab.cli.grid_job import SLURM, submit_array, take_job_words
from launcher_lab.cli.training import PARALLEL, Cell, Training, parts
from launcher_lab.study.runs import quality

EXAMPLES = [
    "train tune adamw_narrow recipe=mild dataset.path=/data/imagenet --trials 5 --studies 3",
    "train tune adamw_narrow recipe=mild dataset.path=/data/imagenet --trials 5 --slurm submit.time=08:00:00",
    "train tune space.yaml dataset=shapes epochs=3 target=top1:0.9",
    "train tune adamw_broad recipe=baseline --list",
]
_RANGE = {"low", "high", "scale"}


def configure(parser: argparse.ArgumentParser) -> None:
    space = "a YAML file of keys with a list, or {low: 0.1, high: 1.0, scale: log}; or "
    parser.add_argument("space", metavar="SPACE", help=space + " or ".join(_packaged()))
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="values for all trials")
    parser.add_argument("--trials", type=int, default=5, metavar="N", help="trials per study (default: 5)")
    parser.add_argument("--studies", type=int, default=1, metavar="N", help="studies, one seed each (default: 1)")
    parser.add_argument("--parallel", type=int, default=1, metavar="N", help=PARALLEL)
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--slurm", action="store_true", help=SLURM)
    instead.add_argument("--list", action="store_true", help="print the trials and start none")
    instead.add_argument("--json", action="store_true", help="print the results so far as JSON and start no trial")


def main(arguments: argparse.Namespace) -> int:
    job_words = take_job_words(arguments)
    counts = {"--trials": arguments.trials, "--studies": arguments.studies}
    for flag, count in counts.items():
        if count < 1:
            raise UserError(Problem("must be at least 1", flag, count))
    if arguments.trials * arguments.studies > MOST_RUNS:
        flag = max(counts, key=counts.__getitem__)
        raise UserError(Problem(f"makes more than {MOST_RUNS:,} runs; set fewer", flag, counts[flag]))
    space = read_space(arguments.space)
    arguments.overrides = on_a_recipe("tune", arguments)
    common = compose(arguments.overrides).config
    all_trials = trials(space, studies=arguments.studies, each=arguments.trials, seed=common.seed)
    runs = Path(common.runs) / f"tune-{space.name}"
    where = word_of("runs", str(runs))
    cells = {}
    for trial in all_trials:
        command = (*arguments.overrides, *words(trial, common.seed), where, f"run_name={trial.name}")
        cells[trial.name] = Cell(command, compose(command), runs / trial.name)
    training = Training([*cells.values()], parts(arguments.parallel, common.launch.device))
    if arguments.slurm:
        flags = [f"{flag}={count}" for flag, count in counts.items()]
        after = ["tune", arguments.space, *flags, *arguments.overrides]
        return submit_array(training.cells, check_all(training.cells, here=False), [after], job_words, {})
    _check(training, starts=not (arguments.list or arguments.json))
    if arguments.list:
        for cell in cells.values():
            print(shlex.join(["train", *cell.words]))
        return 0
    if not arguments.json and (code := training.run()) is not None:
        return code
    goal = common.task.goal(common.target) if common.target else None
    ordered = results(all_trials, runs, goal, common.task.primary)
    if arguments.json:
        print_json([{**asdict(result), "command": cells[result.trial.name].words} for result in ordered])
    else:
        console().print(_table(ordered, common.target, common.task.primary))
    return 0


def _check(training: Training, *, starts: bool) -> None:
    """Report values out of bounds and folders of other runs before the first trial.

    Raises UserError with each distinct error of the trials, once.
    """
    if starts:
        check_all(training.cells, here=True, gpus=training.machine[0].count)
        return
    for cell in training.cells:
        if cell.folder.exists():
            check_existing(cell.folder, as_started(cell, here=True, must_exist=False).plan.config, here=True)


def _table(ordered: list[TrialResult], target: str | None, primary: Metric) -> Table:
    first = ordered[0].trial.values
    varied = [key for key in first if len({str(result.trial.values[key]) for result in ordered}) > 1]
    seconds = f"to {target}" if target else "training"
    cells = table("trial", *varied, f"best {primary.title}", seconds)
    for result in ordered:
        values = (_shown(result.trial.values[key]) for key in varied)
        top1 = "-" if result.top1 is None else primary.text(result.top1)
        cells.add_row(result.trial.name, *values, top1, "-" if result.seconds is None else duration(result.seconds))
    return cells


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Space:
    """A search space: `axes` map a number in [0, 1) to a key's value; `fixed` values are the same in all trials."""

    name: str
    axes: Mapping[str, Callable[[float], Any]]
    fixed: Mapping[str, Any]


@dataclass(frozen=True)
class Trial:
    """One run of a study; numbers start at 1."""

    study: int
    number: int
    values: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"study-{self.study}-trial-{self.number}"


@dataclass(frozen=True)
class TrialResult:
    """A trial's best value of the task's first metric so far, and its training seconds.

    They count to the target, or to the last evaluation.
    """

    trial: Trial
    run: str
    finished: bool
    top1: float | None
    seconds: float | None


def read_space(name: str) -> Space:
    """Read the search space from a YAML file, or a packaged one by name.

    A scalar is fixed, a list is a choice, and `{low, high}` is a range: uniform, with `scale: log` uniform in the
    logarithm, with `scale: log_from_one` uniform in the logarithm of the distance to 1. Integer bounds give integer
    values.

    Raises UserError if the file is missing, or has an unknown key, an invalid range or an empty list.
    """
    path = _path(name)
    axes: dict[str, Callable[[float], Any]] = {}
    fixed, problems = {}, []
    for key, value in read_mapping(path).items():
        if key not in all_keys():
            candidate = nearest_key(key)
            message = "no such key" + (f"; did you mean {candidate}?" if candidate else "; `train show` lists the keys")
            problems.append(Problem(message, key, value, str(path)))
        elif isinstance(value, list) and value:
            axes[key] = _choice(value)
        elif isinstance(value, dict) and _RANGE >= value.keys() >= {"low", "high"} and (axis := _range(value)):
            axes[key] = axis
        elif isinstance(value, list | dict):
            message = "must be a value, a list to choose from, or {low: 0.1, high: 1.0, scale: log} with low < high"
            problems.append(Problem(message, key, value, str(path)))
        else:
            fixed[key] = value
    if not axes and not problems:
        problems.append(Problem(f"{path} varies nothing; add at least one list or range"))
    if problems:
        raise UserError(*problems)
    return Space(path.stem, axes, fixed)


def trials(space: Space, *, studies: int, each: int, seed: int) -> list[Trial]:
    """Return the trials of all studies: consecutive points of a scrambled Halton sequence, determined by `seed`."""
    import numpy as np
    from scipy.stats.qmc import Halton

    points = Halton(len(space.axes), scramble=True, rng=np.random.default_rng(seed)).random(studies * each)
    return [
        Trial(index // each + 1, index % each + 1, values_at(space, point.tolist()))
        for index, point in enumerate(points)
    ]


def values_at(space: Space, point: list[float]) -> dict[str, Any]:
    """Return the dotted keys and values at a point of the unit cube."""
    varied = {key: value(number) for (key, value), number in zip(space.axes.items(), point, strict=True)}
    return {**space.fixed, **varied}


def words(trial: Trial, seed: int) -> list[str]:
    """Return the command-line words of a trial; each study has its own seed."""
    return [*(f"{key}={_word(value)}" for key, value in trial.values.items()), f"seed={seed + trial.study - 1}"]


def results(trials: Sequence[Trial], runs: Path, goal: Goal | None, primary: Metric) -> list[TrialResult]:
    """Return the results, the best first, or with a goal the fastest first."""
    unordered = [_result(trial, RunFolder(runs / trial.name), goal, primary) for trial in trials]

    def order(result: TrialResult) -> tuple[float, float]:
        seconds = math.inf if goal is None or result.seconds is None else result.seconds
        return seconds, math.inf if result.top1 is None else primary.gain(0.0, result.top1)

    return sorted(unordered, key=order)


def _packaged() -> dict[str, Path]:
    """Return the files of the packaged search spaces by name."""
    return {path.stem: path for path in sorted((paths.CONF / "tuning").glob("*.yaml"))}


def _path(name: str) -> Path:
    packaged = _packaged()
    if name in packaged:
        return packaged[name]
    if not is_file(Path(name)):
        message = f"no such search space; pass a YAML file, or a packaged one: {did_you_mean(name, packaged)}"
        raise UserError(Problem(message, "tune", name))
    return Path(name)


def _choice(values: list[Any]) -> Callable[[float], Any]:
    return lambda number: values[min(int(number * len(values)), len(values) - 1)]


def _range(values: Mapping[str, Any]) -> Callable[[float], Any] | None:
    """Return the function from [0, 1) to a range; None if the range is invalid."""
    low, high, scale = values["low"], values["high"], values.get("scale", "linear")
    if not all(isinstance(bound, int | float) and not isinstance(bound, bool) for bound in (low, high)) or low >= high:
        return None
    if scale == "linear" and isinstance(low, int) and isinstance(high, int):
        return lambda number: low + int(number * (high + 1 - low))
    if scale == "linear":
        return lambda number: low + (high - low) * number
    if scale == "log" and low > 0:
        return _integer_if(low, high, lambda number: low * (high / low) ** number)
    if scale == "log_from_one" and high < 1:
        return lambda number: 1 - (1 - low) * ((1 - high) / (1 - low)) ** number
    return None


def _integer_if(low: float, high: float, value: Callable[[float], float]) -> Callable[[float], Any]:
    integer = isinstance(low, int) and isinstance(high, int)
    return (lambda number: min(high, max(low, round(value(number))))) if integer else value


def _word(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) and math.isfinite(value) else str(value)


def _result(trial: Trial, folder: RunFolder, goal: Goal | None, primary: Metric) -> TrialResult:
    evaluations = [row for row in read_metrics(folder.metrics) if row["kind"] == "eval"]
    at = reached(evaluations, goal) if goal is not None else evaluations[-1] if evaluations else None
    top1 = primary.best(map(quality, evaluations))
    return TrialResult(trial, str(folder.path), is_finished(folder.metrics), top1, at["train_seconds"] if at else None)
