"""AlgoPerf's score over run folders: time to a target, median over studies, performance profiles.

Dahl et al. 2023, Benchmarking neural network training algorithms, sections 4.3 and 4.5; Dolan & Moré 2002; the
variants as in MLCommons' scoring. A submission is a recipe, a workload is a data set and model, a study is a seed, and
its trials are the runs of that seed. All runs are on one machine.
"""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import numpy as np

from launcher.counts import count_of
from launcher.records.run import RunSummary
from launcher.results.curves import dataset_names
from launcher.results.published import published

Ruleset = Literal["external", "self"]
Seconds = Mapping[str, Mapping[str, float]]  # submission to workload to seconds; a missed target is infinite

MAX_RATIO = 4.0
_POINTS = 100  # ratios at which MLCommons' scoring evaluates a profile
# Factor of a workload's time limit.
_BUDGET: dict[Ruleset, float] = {"external": 1.0, "self": 1.5}
# Required studies, and trials per study.
_REQUIRED: dict[Ruleset, tuple[int, int]] = {"external": (3, 5), "self": (3, 1)}


@dataclass(frozen=True)
class Workload:
    """Targets of top-1 in [0, 1] within seconds by GPU, and the config values that identify the workload.

    A variant has a `base`, whose limits are its own.
    """

    target: float
    test_target: float
    values: Mapping[str, Any]
    limits: Mapping[str, int] = field(default_factory=dict)
    base: str | None = None

    def limit(self, device: str | None) -> int:
        """Return the limit of the benchmark's machine with this GPU; on others, that of 8 V100."""
        limits = workloads()[self.base].limits if self.base else self.limits
        return next((seconds for gpu, seconds in limits.items() if gpu in (device or "")), limits["V100"])


@dataclass(frozen=True)
class Scores:
    """Score in [0, 1] and seconds to the target per submission and workload; notes on deviations from the rules.

    `counted` has the times that determine the score, without variants.
    """

    score: Mapping[str, float]
    seconds: Seconds
    counted: Seconds
    notes: Sequence[str]


@cache
def workloads() -> dict[str, Workload]:
    """Return AlgoPerf's workloads by name."""
    return {name: Workload(**values) for name, values in published()["workloads"].items()}


def score_runs(runs: Sequence[RunSummary], target: float | None, ruleset: Ruleset) -> Scores:
    """Score the recipes of the runs; `target` is a value of their metric, such as top-1 in [0, 1].

    None means AlgoPerf's. A damaged run is a miss.
    """
    studies: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    notes: list[str] = []
    names = dataset_names(runs)
    for run in _on_one_machine(runs, notes):
        if not run.config:
            notes.append(f"skipped {run.path}: unknown recipe ({run.problem})")
            continue
        name = algoperfs_workload(run.values)
        if target is not None:
            activation = run.values.get("model.activation", "relu")
            name = f"{names[run.identity]} {run.model}"
            if activation != "relu":
                name += f" {activation}"
        if name is None:
            notes.append(f"skipped {run.path}: not an AlgoPerf workload; set --target to score it")
            continue
        seconds_needed, test_notes = _needed(run, target, name, ruleset)
        notes += test_notes
        if run.state in ("damaged", "unreadable"):
            notes.append(f"{run.path} is {run.state} and counts as a miss ({run.problem})")
        elif run.state in ("running", "failed", "interrupted") and math.isinf(seconds_needed):
            notes.append(f"{run.path} is {run.state} and counts as a miss")
        studies[run.recipe, name][str(run.seed)].append(seconds_needed)
    scored_workloads = sorted({workload for _, workload in studies})
    submissions = sorted({submission for submission, _ in studies})
    seconds: dict[str, dict[str, float]] = {submission: {} for submission in submissions}
    for submission in submissions:
        for workload in scored_workloads:
            times = list(studies.get((submission, workload), {}).values())
            notes += _deviations(submission, workload, times, ruleset)
            seconds[submission][workload] = median_of_fastest(times)
    bases = {name: one.base for name, one in workloads().items() if one.base} if target is None else {}
    counted = with_variants(seconds, bases)
    return Scores({name: score(counted, name) for name in submissions}, seconds, counted, notes)


def algoperfs_workload(values: Mapping[str, Any]) -> str | None:
    """Return the workload whose values match a run's dotted values; of several, the one with the most values."""
    if values.get("dataset.name") != "imagenet":
        return None
    matching = {
        name: len(one.values)
        for name, one in workloads().items()
        if all(values.get(key) == value for key, value in one.values.items())
    }
    return max(matching, key=matching.__getitem__, default=None)


def _needed(run: RunSummary, target: float | None, name: str, ruleset: Ruleset) -> tuple[float, list[str]]:
    """Return seconds to the target within the workload's limit, and a note if the test target was missed."""
    if target is not None:
        return seconds_to(run, target), []
    workload = workloads()[name]
    needed = seconds_to(run, workload.target)
    if needed > _BUDGET[ruleset] * workload.limit(run.device):
        return math.inf, []
    missed = run.test_top1 is not None and run.test_top1 < 100 * workload.test_target
    message = f"{run.path} reached the target of {name}, but not {workload.test_target:.2%} on the test images"
    return needed, [f"{message}: {run.test_top1:.2f} %"] if missed else []


def seconds_to(run: RunSummary, target: float) -> float:
    """Return the training seconds, without evaluations, at the first evaluation that reached the target."""
    reached = (e.clock_minutes * 60 for e in run.evaluations if e.top1 >= run.metric.factor * target)
    return next(reached, math.inf)


def median_of_fastest(studies: Sequence[Sequence[float]]) -> float:
    """Return the median over studies of the fastest trial; infinite without studies."""
    return statistics.median([min(trials) for trials in studies]) if studies else math.inf


def with_variants(seconds: Seconds, bases: Mapping[str, str]) -> Seconds:
    """Return the times on base workloads; a submission that misses a variant also misses its base.

    More than four times the fastest time on a variant is also a miss; a submission that missed the base is not fastest.
    `bases` maps variants to bases; a base without any submission stays unchanged.
    """
    names = list(next(iter(seconds.values()), {}))
    variants = {name: bases[name] for name in names if bases.get(name) in names}
    valid = {
        submission: {n: math.inf if math.isinf(row[variants.get(n, n)]) else row[n] for n in names}
        for submission, row in seconds.items()
    }
    fastest = {name: min(row[name] for row in valid.values()) for name in names}

    def missed(row: Mapping[str, float], name: str) -> bool:
        return math.isinf(row[name]) or row[name] > MAX_RATIO * fastest[name]

    return {
        submission: {
            name: math.inf if any(missed(row, n) for n in names if variants.get(n, n) == name) else row[name]
            for name in names
            if name not in variants
        }
        for submission, row in valid.items()
    }


def profile(seconds: Seconds, submission: str, ratio: float) -> float:
    """Return the fraction of workloads on which a submission needs at most `ratio` times the fastest time."""
    own = seconds[submission]
    # note: no ratio of two infinite times is at most another
    return sum(time / min(row[name] for row in seconds.values()) <= ratio for name, time in own.items()) / len(own)


def score(seconds: Seconds, submission: str) -> float:
    """Return the profile's integral over ratios 1 to 4, divided by 3, by the trapezoidal rule of MLCommons' scoring."""
    shares = [profile(seconds, submission, ratio) for ratio in np.linspace(1, MAX_RATIO, _POINTS)]
    return (sum(shares) - (shares[0] + shares[-1]) / 2) / (_POINTS - 1)


def _on_one_machine(runs: Sequence[RunSummary], notes: list[str]) -> list[RunSummary]:
    """Return the runs on the machine with the most runs and those without a machine; add a note for the others."""
    machines = Counter(run.hardware for run in runs if run.device is not None)
    chosen = machines.most_common(1)[0][0] if machines else None
    others = {machine: count for machine, count in machines.items() if machine != chosen}
    notes += [
        f"skipped {count_of(count, 'run')} on {machine}; the scores compare runs on {chosen}"
        for machine, count in others.items()
    ]
    return [run for run in runs if run.device is None or run.hardware == chosen]


def _deviations(submission: str, workload: str, studies: Sequence[Sequence[float]], ruleset: Ruleset) -> list[str]:
    required_studies, required_trials = _REQUIRED[ruleset]
    trials = sorted({len(study) for study in studies})
    if len(studies) == required_studies and trials == [required_trials]:
        return []
    have = f"{count_of(len(studies), 'study')} of {' or '.join(map(str, trials)) or 0} trials"
    return [f"{submission} on {workload}: {have}; {ruleset} tuning needs {required_studies} of {required_trials}"]
