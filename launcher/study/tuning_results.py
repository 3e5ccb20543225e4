"""What came out of a study's trials, the best first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.records.folder import RunFolder
from launcher.records.metrics import read_metrics
from launcher.records.target import reached
from launcher.study.tuning import Trial


@dataclass(frozen=True)
class Result:
    """A trial's best top-1 in [0, 1] so far, and its training seconds: to the target, or to the last evaluation."""

    trial: Trial
    run: str
    finished: bool
    top1: float | None
    seconds: float | None


def results(trials: Sequence[Trial], runs: Path, target: str | None) -> list[Result]:
    """With a target the soonest at it first, otherwise the most accurate."""
    found = [_result(trial, RunFolder(runs / trial.name), target) for trial in trials]

    def order(result: Result) -> tuple[float, float]:
        seconds = math.inf if target is None or result.seconds is None else result.seconds
        return seconds, -(result.top1 or 0.0)

    return sorted(found, key=order)


def is_finished(folder: RunFolder) -> bool:
    """Whether a run came to its end."""
    return any(row["kind"] == "end" and row["finished"] for row in read_metrics(folder.metrics))


def _result(trial: Trial, folder: RunFolder, target: str | None) -> Result:
    evaluations = [row for row in read_metrics(folder.metrics) if row["kind"] == "eval"]
    if not evaluations:
        return Result(trial, str(folder.path), is_finished(folder), None, None)
    top1 = max(float(row["top1"]) for row in evaluations)
    at = reached(evaluations, target) if target is not None else None
    seconds = evaluations[-1]["train_seconds"] if target is None else at.seconds if at else None
    return Result(trial, str(folder.path), is_finished(folder), top1, seconds)
