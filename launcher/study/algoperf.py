"""AlgoPerf's score over run folders: time to a target, median over studies, performance profiles.

Dahl et al. 2023, Benchmarking neural network training algorithms, sections 4.3 and 4.5; Dolan & Moré 2002.
A submission is a recipe, a workload is data set and model, a study is a seed, its trials are the runs of that seed.
All of them are on one machine.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from launcher.study.datasets import dataset_names
from launcher.study.runs import RunSummary

Ruleset = Literal["external", "self"]
Seconds = Mapping[str, Mapping[str, float]]  # submission to workload to seconds; a missed target is infinite

MAX_RATIO = 4.0
# Studies, and trials a study, that the rules ask for.
_ASKED: dict[Ruleset, tuple[int, int]] = {"external": (3, 5), "self": (3, 1)}


@dataclass(frozen=True)
class Scores:
    """Score in [0, 1] and seconds to the target on each workload of each submission; what departs from the rules."""

    score: Mapping[str, float]
    seconds: Seconds
    notes: Sequence[str]


def score_runs(runs: Sequence[RunSummary], target: float, ruleset: Ruleset) -> Scores:
    """Score all recipes among the runs; `target` is top-1 in [0, 1]. A damaged run is a miss."""
    studies: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    notes: list[str] = []
    pictures = dataset_names(runs)
    for run in _on_one_machine(runs, notes):
        if not run.config:
            notes.append(f"{run.path} is left out, its recipe is unknown: {run.problem}")
            continue
        if run.state == "damaged":
            notes.append(f"{run.path} is damaged and counts as a miss: {run.problem}")
        elif run.state in ("running", "unfinished") and math.isinf(seconds_to(run, target)):
            notes.append(f"{run.path} is {run.state} and counts as a miss so far")
        studies[run.recipe, _workload(run, pictures[run.identity])][str(run.seed)].append(seconds_to(run, target))
    workloads = sorted({workload for _, workload in studies})
    submissions = sorted({submission for submission, _ in studies})
    seconds: dict[str, dict[str, float]] = {submission: {} for submission in submissions}
    for submission in submissions:
        for workload in workloads:
            found = list(studies.get((submission, workload), {}).values())
            notes += _departures(submission, workload, found, ruleset)
            seconds[submission][workload] = median_of_fastest(found)
    return Scores({name: score(seconds, name) for name in submissions}, seconds, notes)


def seconds_to(run: RunSummary, target: float) -> float:
    """Training clock at the first evaluation that reached the target; evaluation is off the clock, warm-up is on it."""
    reached = (e.clock_minutes * 60 for e in run.evaluations if e.top1 >= 100 * target)
    return next(reached, math.inf)


def median_of_fastest(studies: Sequence[Sequence[float]]) -> float:
    """Of each study the fastest trial, of these the median; no study at all is a miss."""
    return statistics.median([min(trials) for trials in studies]) if studies else math.inf


def profile(seconds: Seconds, submission: str, ratio: float) -> float:
    """The share of workloads on which a submission needs at most `ratio` times the fastest one's time."""
    ratios = _ratios(seconds, submission)
    return sum(r <= ratio for r in ratios) / len(ratios)


def score(seconds: Seconds, submission: str) -> float:
    """The profile's integral over ratios from 1 to 4, divided by 3; exact, since a profile is a staircase."""
    ratios = _ratios(seconds, submission)
    return sum(max(0.0, MAX_RATIO - r) for r in ratios) / len(ratios) / (MAX_RATIO - 1)


def _ratios(seconds: Seconds, submission: str) -> list[float]:
    ratios = []
    for workload, own in seconds[submission].items():
        fastest = min(row[workload] for row in seconds.values())
        ratios.append(own / fastest if math.isfinite(own) else math.inf)
    return ratios


def _on_one_machine(runs: Sequence[RunSummary], notes: list[str]) -> list[RunSummary]:
    """The runs on the machine that has the most of them, and those that did not come so far; the others are noted."""
    machines = Counter(run.hardware for run in runs if run.device is not None)
    chosen = machines.most_common(1)[0][0] if machines else None
    others = {machine: count for machine, count in machines.items() if machine != chosen}
    notes += [
        f"{count} of the runs are on {machine} and left out, most were on {chosen}" for machine, count in others.items()
    ]
    return [run for run in runs if run.device is None or run.hardware == chosen]


def _workload(run: RunSummary, dataset: str) -> str:
    activation = run.values.get("model.activation", "relu")
    return " ".join([dataset, run.model, *([] if activation == "relu" else [str(activation)])])


def _departures(submission: str, workload: str, studies: Sequence[Sequence[float]], ruleset: Ruleset) -> list[str]:
    asked_studies, asked_trials = _ASKED[ruleset]
    trials = sorted({len(study) for study in studies})
    if len(studies) == asked_studies and trials == [asked_trials]:
        return []
    have = f"{len(studies)} studies of {' or '.join(map(str, trials)) or 0} trials"
    return [f"{submission} on {workload}: {have}; the {ruleset}-tuning rules ask for {asked_studies} of {asked_trials}"]
