"""The words of a grid: the runs of all combinations of their values, folds, and points of intervals."""

from __future__ import annotations

import argparse
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.cli.auto import with_recipe
from launcher.config.compose import Composed, compose
from launcher.config.keys import is_text, is_whole
from launcher.config.layers import COMMAND_LINE
from launcher.config.overrides import read_override
from launcher.config.recipes import AUTO
from launcher.config.schema import RunConfig
from launcher.errors import Problem, Problems, UserError
from launcher.plan.epochs import dilated_epochs
from launcher.records.run import State, read_run
from launcher_lab.study.ablation import alternatives

# All runs are composed and checked before the first one starts.
MOST_RUNS = 1000
ALL_FOLDS = "dataset.fold=all"
TRIALS = "trials"
Point = Mapping[str, str]  # the words of one trial by key
NO_POINT: Point = {}


@dataclass(frozen=True)
class Cell:
    """One run of a grid: the words of its command line, their composition, and its folder, which may not exist yet."""

    words: tuple[str, ...]
    composed: Composed
    folder: Path

    @property
    def state(self) -> State | None:
        """Return the run's state; None before it starts."""
        return read_run(self.folder).state if self.folder.exists() else None

    @property
    def epochs(self) -> int:
        """Return the length after dilation."""
        return dilated_epochs(self.composed.config.epochs, self.composed.config.schedule.dilate)


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


def points(words: Sequence[str], trials: int | None) -> list[Point]:
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
        return [NO_POINT]
    if trials is None:
        message, one = "is an interval; add the number of its values, such as trials=8", intervals[0]
        raise UserError(Problem(message, one.key, one.typed, COMMAND_LINE))
    if not intervals:
        example = "'optimizer.lr=interval(0.1,1)'"
        raise UserError(Problem(f"needs an interval, such as {example}", TRIALS, trials, COMMAND_LINE))
    if trials > MOST_RUNS:
        raise UserError(Problem(f"makes more than {MOST_RUNS:,} runs; set fewer", TRIALS, trials, COMMAND_LINE))
    import numpy as np
    from scipy.stats.qmc import Halton

    seeds = [word for word in words if word.startswith("seed=")]
    seed = compose([_first(word) for word in seeds[-1:]]).config.seed
    numbers = Halton(len(intervals), scramble=True, rng=np.random.default_rng(seed)).random(trials)
    rows = [{one.key: one.word(number) for one, number in zip(intervals, row, strict=True)} for row in numbers.tolist()]
    # note: whole numbers may repeat
    return [row for number, row in enumerate(rows) if row not in rows[:number]]


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


def _interval(word: str) -> Iterator[_Interval]:
    """Yield the interval of a word; nothing for other words.

    Raises UserError if it cannot be one.
    """
    from hydra.core.override_parser.types import IntervalSweep

    key, _, text = word.partition("=")
    override = read_override(word) if "interval" in text else None
    interval = override.value() if override else None
    if not isinstance(interval, IntervalSweep):
        return
    low, high, is_log = interval.start, interval.end, "log" in interval.tags
    if is_text(RunConfig, key.lstrip("+")):
        raise UserError(Problem("takes no interval; list its values as a,b", key, text, COMMAND_LINE))
    if low is None or high is None or not -math.inf < low < high < math.inf or (is_log and low <= 0):
        above = ", and above 0 for tag(log,...)" if is_log else ""
        message = f"must have its smaller bound first{above}, such as interval(0.1,1)"
        raise UserError(Problem(message, key, text, COMMAND_LINE))
    yield _Interval(key, text, low, high, is_log)


def on_a_recipe(verb: str, arguments: argparse.Namespace, point: Point = NO_POINT) -> list[str]:
    """Return the words of a grid with the recipe that is chosen if they have none.

    Of several values the first counts, of intervals those of `point`.

    Raises UserError as `with_recipe`.
    """
    words = arguments.overrides
    first = [point.get(word.partition("=")[0]) or _first(word) for word in _with_folds(words)]
    explicit, composed, _ = with_recipe("submit" if arguments.slurm else verb, first)
    rest = [word for word in words if word.lstrip("+") != f"recipe={AUTO}"]
    return [*explicit[: len(explicit) - len(rest)], *rest] if composed else words


def expand(words: Sequence[str], name: str | None = None, points: Sequence[Point] = (NO_POINT,)) -> list[Cell]:
    """Return the runs of all combinations of values, as in `recipe=mild,hot epochs=8,16 seed=0,1`; seeds vary slowest.

    Keys with intervals have the values of each of the `points`.

    Lengths dilate the recipe's schedule (MosaicML methodology), unless the words set `schedule.dilate`. The names of
    the folders contain `name`.

    Raises UserError with each distinct error of the combinations, once.
    """
    words = _with_folds(words)
    # note: `compose` checks the words with one value
    choices = {
        key: alternatives(word, MOST_RUNS + 1) or [word]
        for word in words
        if (key := word.partition("=")[0]) not in points[0]
    }
    if math.prod(map(len, choices.values())) * len(points) > MOST_RUNS:
        most = max(choices, key=lambda key: len(choices[key]))
        value = next(word for word in words if word.startswith(f"{most}=")).partition("=")[2]
        raise UserError(Problem(f"makes more than {MOST_RUNS:,} runs; list fewer values", most, value, COMMAND_LINE))
    if "run_name" in choices:
        value = choices["run_name"][0].partition("=")[2]
        message = "cannot be set for a grid; set the parent folder with runs=FOLDER"
        raise UserError(Problem(message, "run_name", value))
    several = [*points[0], *(key for key, values in choices.items() if len(values) > 1)]
    # note: every length gets a first result before any gets a second
    order = sorted(choices, key=lambda key: key != "seed")
    cells, problems = [], Problems()
    for values, point in itertools.product(itertools.product(*(choices[key] for key in order)), points):
        chosen = dict(zip(order, values, strict=True))
        with problems.collected():
            cells.append(_cell({**{key: chosen[key] for key in choices}, **point}, several, name))
    problems.settle()
    return cells


def _first(word: str) -> str:
    """Return a word with the first of its values."""
    return (alternatives(word, 1) or [word])[0]


def _with_folds(words: Sequence[str]) -> list[str]:
    """Return the words with all folds in place of `dataset.fold=all`.

    Raises UserError if no word sets their number.
    """
    if ALL_FOLDS not in words:
        return [*words]
    folds = [value for key, _, value in (word.partition("=") for word in words) if key == "dataset.folds"]
    if not folds or not folds[-1].isdecimal():
        raise UserError(Problem("needs their number; add dataset.folds=5", "dataset.fold", "all", COMMAND_LINE))
    every = ",".join(map(str, range(1, int(folds[-1]) + 1)))
    return [f"dataset.fold={every}" if word == ALL_FOLDS else word for word in words]


def _cell(chosen: dict[str, str], several: Sequence[str], name: str | None) -> Cell:
    words = list(chosen.values())
    composed = compose(words)
    if "epochs" in chosen and "schedule.dilate" not in chosen:
        del chosen["epochs"]
        own = compose(list(chosen.values())).config.epochs
        words = [*chosen.values(), f"schedule.dilate={composed.config.epochs / own!r}"]
        composed = compose(words)
    config = composed.config
    epochs = dilated_epochs(config.epochs, config.schedule.dilate)
    other = [key for key in several if key not in ("recipe", "seed", "epochs", "schedule.dilate")]
    first = [config.recipe or config.model.architecture, config.dataset.name, *([name] if name else [])]
    parts = [*first, *(chosen[key] for key in other), f"{epochs}ep", f"seed{config.seed}"]
    folder = "-".join(re.sub(r"[^\w.=+]+", "_", part) for part in parts)
    return Cell((*words, f"run_name={folder}"), composed, Path(config.runs) / folder)
