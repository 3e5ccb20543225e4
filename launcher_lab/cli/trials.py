"""Trials of `train curve`: points of intervals by a Halton sequence, and their results, the best first."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launcher.config.compose import compose
from launcher.config.keys import is_text, is_whole
from launcher.config.layers import COMMAND_LINE
from launcher.config.overrides import read_override
from launcher.config.schema import RunConfig
from launcher.console import console, table, verbatim
from launcher.errors import Problem, Problems, UserError
from launcher.records.metrics import reached
from launcher.records.progress import duration
from launcher.records.run import read_run
from launcher_lab.cli.training import Cell
from launcher_lab.study.ablation import alternatives

TRIALS = "trials"
_LOG = "log"
Point = Mapping[str, str]  # the words of one trial by key


@dataclass(frozen=True)
class _Interval:
    """The values of a key: uniform, or uniform in the logarithm; whole numbers for a key of whole numbers."""

    key: str
    typed: str
    low: float
    high: float
    is_log: bool

    def word(self, number: float) -> str:
        """Return `key=value` for a number in [0, 1)."""
        low, high = self.low, self.high
        value = low * (high / low) ** number if self.is_log else low + (high - low) * number
        return f"{self.key}={round(value) if is_whole(self.key.lstrip('+')) else f'{value:.6g}'}"


@dataclass(frozen=True)
class Result:
    """A run's best value of the task's first metric, and its training seconds to the target, or else to the end."""

    cell: Cell
    top1: float | None
    seconds: float | None


def without_trials(words: Sequence[str]) -> tuple[list[str], int | None]:
    """Return the words without `trials=N`, and N.

    Raises UserError if it is not a whole number above 0.
    """
    typed = [word.partition("=")[2] for word in words if word.startswith(f"{TRIALS}=")]
    if not typed:
        return [*words], None
    if not typed[-1].isdecimal() or int(typed[-1]) < 1:
        raise UserError(Problem("must be a whole number, at least 1", TRIALS, typed[-1], COMMAND_LINE))
    return [word for word in words if not word.startswith(f"{TRIALS}=")], int(typed[-1])


def points(words: Sequence[str], trials: int | None, most: int) -> list[Point]:
    """Return the points of the intervals among the words, or one without values if there are none.

    They are the first of a scrambled Halton sequence that the first seed determines, as in AlgoPerf's tuning.

    Raises UserError if an interval is invalid, or there are intervals without a number of trials, or the reverse.
    """
    problems, intervals = Problems(), list[_Interval]()
    for word in words:
        with problems.collected():
            intervals += _interval(word)
    problems.settle()
    if trials is None and not intervals:
        return [{}]
    if trials is None:
        message, one = "is an interval; add the number of its values, such as trials=8", intervals[0]
        raise UserError(Problem(message, one.key, one.typed, COMMAND_LINE))
    if not intervals:
        example = "'optimizer.lr=interval(0.1,1)'"
        raise UserError(Problem(f"needs an interval, such as {example}", TRIALS, trials, COMMAND_LINE))
    if trials > most:
        raise UserError(Problem(f"makes more than {most:,} runs; set fewer", TRIALS, trials, COMMAND_LINE))
    return _drawn(intervals, trials, _seed(words))


def show_results(cells: Sequence[Cell], keys: Sequence[str]) -> None:
    """Print the results, the best first, and the line that trains with the values of the best."""
    config = cells[0].composed.config
    primary = config.task.primary
    ordered = ranked(cells)
    seconds = f"to {config.target}" if config.target else "training"
    shown = table("run", *keys, f"best {primary.title}", seconds)
    for one in ordered:
        values = dict(word.split("=", 1) for word in one.cell.words)
        top1 = "-" if one.top1 is None else primary.text(one.top1)
        time = "-" if one.seconds is None else duration(one.seconds)
        shown.add_row(verbatim(one.cell.folder.name), *(values[key] for key in keys), top1, time)
    out = console()
    out.print(shown)
    if ordered[0].top1 is not None:
        words = [word for word in ordered[0].cell.words if not word.startswith("run_name=")]
        out.print(verbatim(f"the best: train {shlex.join(words)}"))


def ranked(cells: Sequence[Cell]) -> list[Result]:
    """Return the results, the best first, or with a target the fastest first."""
    config = cells[0].composed.config
    primary = config.task.primary

    def order(one: Result) -> tuple[float, float]:
        seconds = math.inf if config.target is None or one.seconds is None else one.seconds
        return seconds, math.inf if one.top1 is None else primary.gain(0.0, one.top1)

    return sorted(map(result, cells), key=order)


def result(cell: Cell) -> Result:
    """Return the result of a run so far."""
    task, target = cell.composed.config.task, cell.composed.config.target
    run = read_run(cell.folder)
    last = next((row for row in reversed(run.rows) if row["kind"] == "eval"), None)
    at = reached(run.rows, task.goal(target)) if target else last
    return Result(cell, run.best.value if run.best else None, at["train_seconds"] if at else None)


def _interval(word: str) -> list[_Interval]:
    """Return the interval of a word; none for other words.

    Raises UserError if it cannot be one.
    """
    from hydra.core.override_parser.types import IntervalSweep

    key, _, text = word.partition("=")
    override = read_override(word) if "interval" in text else None
    interval = override.value() if override else None
    if not isinstance(interval, IntervalSweep):
        return []
    low, high, is_log = interval.start, interval.end, _LOG in interval.tags
    if is_text(RunConfig, key.lstrip("+")):
        raise UserError(Problem("takes no interval; list its values as a,b", key, text, COMMAND_LINE))
    if low is None or high is None or not -math.inf < low < high < math.inf or (is_log and low <= 0):
        above = ", and above 0 for tag(log,...)" if is_log else ""
        message = f"must have its smaller bound first{above}, such as interval(0.1,1)"
        raise UserError(Problem(message, key, text, COMMAND_LINE))
    return [_Interval(key, text, low, high, is_log)]


def _drawn(intervals: Sequence[_Interval], trials: int, seed: int) -> list[Point]:
    import numpy as np
    from scipy.stats.qmc import Halton

    numbers = Halton(len(intervals), scramble=True, rng=np.random.default_rng(seed)).random(trials)
    rows = [{one.key: one.word(number) for one, number in zip(intervals, row, strict=True)} for row in numbers.tolist()]
    # note: whole numbers may repeat
    return [row for number, row in enumerate(rows) if row not in rows[:number]]


def _seed(words: Sequence[str]) -> int:
    """Return the first seed of the words, or else the default."""
    typed = [word for word in words if word.startswith("seed=")]
    first = (alternatives(typed[-1], 1) or typed[-1:]) if typed else []
    return compose(first).config.seed
