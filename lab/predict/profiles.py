"""Steps that were measured on GPUs, by `train estimate` or by a finished run: they correct predictions.

A measured step over the predicted one is how far the efficiencies are off; where the same step was measured, that
carries it to any machine.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from lab.predict.machines import gpus
from lab.predict.prediction import Rates
from lab.predict.step_counts import kept_steps, steps_key
from launcher.config.groups import is_named
from launcher.config.resolved import read
from launcher.config.schema import RunConfig
from launcher.errors import UserError
from launcher.measure.estimate import StepTimes
from launcher.plan.plan import Plan, plan_for
from launcher.plan.step_kinds import StepKind, step_kinds
from launcher.records.folder import RunFolder
from launcher.records.metrics import read_metrics
from launcher.records.summary import saved_estimates


@dataclass(frozen=True)
class MeasuredStep:
    """Mean seconds of steps at a side, without waiting for data; `mix` counts them by what acted, joined by spaces."""

    image_size: int
    mix: dict[str, int]
    seconds: float


@dataclass(frozen=True)
class Profile:
    """Measured steps of a plan on GPUs of one kind; `source` says where they were measured."""

    gpu: str
    plan: Plan
    source: str
    steps: list[MeasuredStep]

    def is_of(self, config: RunConfig) -> bool:
        """Whether its steps were launched as a config's are."""
        own = self.plan.config
        return (own.compile, own.cuda_graphs) == (config.compile, config.cuda_graphs)


@dataclass(frozen=True)
class Correction:
    """What predicted steps are multiplied by, and what it was made from."""

    factor: float
    made_from: str


@dataclass(frozen=True)
class _Estimate:
    """What a profile needs of an estimate."""

    config: RunConfig
    device: str
    processes: int
    steps: list[StepTimes]


_ESTIMATE = TypeAdapter(_Estimate)


def gpu_named(device: str) -> str | None:
    """The entry of conf/gpus.yaml for a device such as `NVIDIA A100-SXM4-40GB`; None of a CPU, or of another module."""
    found = [name for name in gpus() if is_named(name, device)]
    if len(found) > 1:
        found = [name for name in found if f"{gpus()[name].memory:g}GB" in device]
    other = any(word in device.upper() for word in ("PCI", "NVL"))
    return found[0] if len(found) == 1 and not other else None


def read_profiles(runs: Path) -> tuple[list[Profile], list[str]]:
    """The profiles of all estimates and finished runs below a folder; and a line for each estimate that is damaged."""
    profiles, notes = [], []
    for path in saved_estimates(runs):
        try:
            profiles.append(_of_estimate(_ESTIMATE.validate_json(path.read_bytes())))
        except (OSError, ValidationError, AssertionError):
            notes.append(f"{path} cannot be read and is skipped; remove it, and run `train estimate` again")
    profiles += [_of_run(metrics.parent) for metrics in sorted(runs.glob("*/metrics.jsonl"))]
    return [profile for profile in profiles if profile is not None], notes


def _of_estimate(estimate: _Estimate) -> Profile | None:
    """None where it was measured on no GPU that is known."""
    gpu = gpu_named(estimate.device)
    if gpu is None:
        return None
    steps = [
        MeasuredStep(one.image_size, {" ".join(one.acting): 1}, sum(one.step_seconds) / len(one.step_seconds))
        for one in estimate.steps
    ]
    return Profile(gpu, plan_for(estimate.config, estimate.processes), "an estimate", steps)


def _of_run(path: Path) -> Profile | None:
    """A finished run as a profile; None where it was on no GPU that is known, or cannot be read."""
    folder = RunFolder(path)
    try:
        with folder.metrics.open() as lines:
            start = json.loads(next(lines, "{}"))
        gpu = gpu_named(str(start.get("device")))
        if gpu is None:
            return None
        rows = list(read_metrics(folder.metrics))
        if not any(row["kind"] == "end" and row["finished"] for row in rows):
            return None
        plan = plan_for(read(folder.config), int(start["world_size"]))
        steps = list(_of_records(plan, rows))
    except (OSError, ValueError, KeyError, AttributeError, AssertionError, UserError):
        return None
    return Profile(gpu, plan, f"run {path.name}", steps) if steps else None


def _of_records(plan: Plan, rows: Iterable[Mapping[str, Any]]) -> Iterator[MeasuredStep]:
    """The mean step of each side of the records, from the second one of a side, which finds the device warm."""
    kinds = step_kinds(plan)
    seconds: dict[int, list[float]] = {}
    for row in rows:
        if row["kind"] == "train":
            took = row["step_seconds"] - row["data_wait_seconds"]
            seconds.setdefault(row["image_size"], []).append(took)
    for side, found in seconds.items():
        mix = {" ".join(kind.acting): len(steps) for kind, steps in kinds.items() if kind.image_size == side}
        later = found[1:]
        if mix and later and min(later) > 0:
            yield MeasuredStep(side, mix, sum(later) / len(later))


def correction(plan: Plan, gpu: str, profiles: Iterable[Profile], values: Mapping[str, Any]) -> Correction:
    """How far off the efficiencies are by what was measured: of the same steps, else on the same GPU, else anywhere.

    Steps that are not the same tell less: they count as if one profile more had found the efficiencies right.
    """
    fit = [profile for profile in profiles if profile.is_of(plan.config)]
    key = steps_key(plan)
    ratios = [(profile, found) for profile in fit if (found := _ratio(profile, values)) is not None]
    same = [(p, r) for p, r in ratios if steps_key(p.plan) == key]
    near = [(p, r) for p, r in ratios if p.gpu == gpu]
    kinds = (same, "these steps", 0), (near, "other steps on this GPU", 1), (ratios, "other steps", 1)
    for chosen, what, more in kinds:
        if chosen:
            mean = sum(math.log(ratio) for _, ratio in chosen) / (len(chosen) + more)
            where = ", ".join(dict.fromkeys(f"{p.plan.world_size} x {p.gpu} ({p.source})" for p, _ in chosen))
            return Correction(math.exp(mean), f"measured: {what} on {where}, times the ratio of the machines")
    return Correction(1.0, "published rates of other programs (docs/prediction.md); nothing was measured")


def _ratio(profile: Profile, values: Mapping[str, Any]) -> float | None:
    """Measured over predicted seconds, the geometric mean of its sides; None where its steps are not counted."""
    counted = kept_steps(steps_key(profile.plan))
    if counted is None:
        return None
    rates = Rates(gpus()[profile.gpu], profile.plan.world_size, values)
    parts = {StepKind(step.image_size, step.acting): rates.parts(step, profile.plan.config).seconds for step in counted}
    logs = []
    for one in profile.steps:
        mix = {StepKind(one.image_size, tuple(acting.split())): count for acting, count in one.mix.items()}
        if mix.keys() <= parts.keys():
            predicted = sum(parts[kind] * count for kind, count in mix.items()) / sum(mix.values())
            logs.append(math.log(one.seconds / predicted))
    return math.exp(sum(logs) / len(logs)) if logs else None
