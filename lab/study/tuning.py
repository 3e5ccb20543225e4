"""Search spaces, their quasi-random trials and results: a Halton sequence, as AlgoPerf's external tuning draws them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.study.records import quality
from launcher import paths
from launcher.config.keys import all_keys, did_you_mean, nearest_key
from launcher.config.tasks import Goal
from launcher.config.yaml_file import read_mapping
from launcher.data.folder import is_file
from launcher.errors import Problem, UserError
from launcher.records.folder import RunFolder
from launcher.records.metrics import reached, read_metrics

_RANGE = {"low", "high", "scale"}


@dataclass(frozen=True)
class Axis:
    """A key of the config, and the function that takes a number of [0, 1) to its value."""

    key: str
    value: Callable[[float], Any]


@dataclass(frozen=True)
class Space:
    """A search space: what varies, and what is the same in all trials."""

    name: str
    axes: tuple[Axis, ...]
    fixed: Mapping[str, Any]


@dataclass(frozen=True)
class Trial:
    """One run of a study; numbers count from 1."""

    study: int
    number: int
    values: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"study-{self.study}-trial-{self.number}"


@dataclass(frozen=True)
class TrialResult:
    """A trial's best top-1 in [0, 1] so far, and its training seconds: to the target, or to the last evaluation."""

    trial: Trial
    run: str
    finished: bool
    top1: float | None
    seconds: float | None


def read_space(name: str) -> Space:
    """The search space of a YAML file, or of a packaged one by its name.

    A value is fixed; a list is chosen from; `{low, high}` is a range, uniform, or with `scale: log` uniform in the
    logarithm, with `scale: log_from_one` uniform in the logarithm of the distance to 1. Whole bounds give whole values.

    Raises:
        UserError: there is no such file, or something in it is no key, no range, or empty.
    """
    path = _path(name)
    axes, fixed, problems = [], {}, []
    for key, given in read_mapping(path).items():
        if key not in all_keys():
            found = nearest_key(key)
            message = "no such key" + (f"; did you mean {found}?" if found else "")
            problems.append(Problem(message, key, given, str(path)))
        elif isinstance(given, list) and given:
            axes.append(Axis(key, _choice(given)))
        elif isinstance(given, dict) and _RANGE >= given.keys() >= {"low", "high"} and (value := _range(given)):
            axes.append(Axis(key, value))
        elif isinstance(given, list | dict):
            message = "must be a value, a list to choose from, or {low: 0.1, high: 1.0, scale: log} with low < high"
            problems.append(Problem(message, key, given, str(path)))
        else:
            fixed[key] = given
    if not axes and not problems:
        problems.append(Problem(f"{path} varies nothing: give at least one list or range"))
    if problems:
        raise UserError(*problems)
    return Space(path.stem, tuple(axes), fixed)


def trials(space: Space, *, studies: int, each: int, seed: int) -> list[Trial]:
    """The trials of all studies, consecutive points of one scrambled Halton sequence, the same for the same seed."""
    import numpy as np
    from scipy.stats.qmc import Halton

    points = Halton(len(space.axes), scramble=True, rng=np.random.default_rng(seed)).random(studies * each)
    return [
        Trial(index // each + 1, index % each + 1, values_at(space, point.tolist()))
        for index, point in enumerate(points)
    ]


def values_at(space: Space, point: list[float]) -> dict[str, Any]:
    """Dotted keys and values at a point of the unit cube."""
    varied = {axis.key: axis.value(number) for axis, number in zip(space.axes, point, strict=True)}
    return {**space.fixed, **varied}


def words(trial: Trial, seed: int) -> list[str]:
    """The trial as words of the command line; a study has a seed of its own."""
    return [*(f"{key}={_word(value)}" for key, value in trial.values.items()), f"seed={seed + trial.study - 1}"]


def results(trials: Sequence[Trial], runs: Path, goal: Goal | None) -> list[TrialResult]:
    """With a goal the soonest at it first, otherwise the best."""
    found = [_result(trial, RunFolder(runs / trial.name), goal) for trial in trials]

    def order(result: TrialResult) -> tuple[float, float]:
        seconds = math.inf if goal is None or result.seconds is None else result.seconds
        return seconds, -(result.top1 or 0.0)

    return sorted(found, key=order)


def is_finished(folder: RunFolder) -> bool:
    """Whether a run came to its end."""
    return any(row["kind"] == "end" and row["finished"] for row in read_metrics(folder.metrics))


def _path(name: str) -> Path:
    packaged = {path.stem: path for path in (paths.CONF / "tuning").glob("*.yaml")}
    if name in packaged:
        return packaged[name]
    if not is_file(Path(name)):
        message = f"no such search space; give a YAML file, or a packaged one: {did_you_mean(name, packaged)}"
        raise UserError(Problem(message, "tune", name))
    return Path(name)


def _choice(values: list[Any]) -> Callable[[float], Any]:
    return lambda number: values[min(int(number * len(values)), len(values) - 1)]


def _range(given: Mapping[str, Any]) -> Callable[[float], Any] | None:
    """From a number of [0, 1) into a range; None if it is none."""
    low, high, scale = given["low"], given["high"], given.get("scale", "linear")
    if not all(isinstance(bound, int | float) and not isinstance(bound, bool) for bound in (low, high)) or low >= high:
        return None
    if scale == "linear" and isinstance(low, int) and isinstance(high, int):
        return lambda number: low + int(number * (high + 1 - low))
    if scale == "linear":
        return lambda number: low + (high - low) * number
    if scale == "log" and low > 0:
        return _whole_if(low, high, lambda number: low * (high / low) ** number)
    if scale == "log_from_one" and high < 1:
        return lambda number: 1 - (1 - low) * ((1 - high) / (1 - low)) ** number
    return None


def _whole_if(low: float, high: float, value: Callable[[float], float]) -> Callable[[float], Any]:
    whole = isinstance(low, int) and isinstance(high, int)
    return (lambda number: min(high, max(low, round(value(number))))) if whole else value


def _word(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) and math.isfinite(value) else str(value)


def _result(trial: Trial, folder: RunFolder, goal: Goal | None) -> TrialResult:
    evaluations = [row for row in read_metrics(folder.metrics) if row["kind"] == "eval"]
    if not evaluations:
        return TrialResult(trial, str(folder.path), is_finished(folder), None, None)
    top1 = max(quality(row) for row in evaluations)
    at = reached(evaluations, goal) if goal is not None else None
    seconds = evaluations[-1]["train_seconds"] if goal is None else at.seconds if at else None
    return TrialResult(trial, str(folder.path), is_finished(folder), top1, seconds)
