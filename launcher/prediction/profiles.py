"""Steps measured on GPUs by `train estimate` or a finished run, which correct predictions.

The ratio of a measured step to the predicted one is the error of the efficiencies; for the same step it holds on any
machine.
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from launcher.config.fields import is_on
from launcher.config.gpus import gpus
from launcher.config.groups import is_named
from launcher.config.resolved import read
from launcher.config.schema import RunConfig
from launcher.errors import UserError
from launcher.installation import page
from launcher.measure.estimate import StepTimes
from launcher.plan.counted import cached_steps, computed
from launcher.plan.plan import Plan, plan_for
from launcher.plan.step_kinds import StepKind, step_kinds
from launcher.prediction.faster import is_open
from launcher.prediction.rates import Rates
from launcher.records.metrics import read_metrics
from launcher.records.run import read_run
from launcher.records.run_folder import RunFolder
from launcher.records.summary import saved_estimates


@dataclass(frozen=True)
class MeasuredStep:
    """Mean seconds of steps of some kinds, without data waits; `mix` counts them by kind."""

    mix: dict[StepKind, int]
    seconds: float


@dataclass(frozen=True)
class Profile:
    """Measured steps of a plan on GPUs of one kind; `source` is the estimate or run."""

    gpu: str
    plan: Plan
    source: str
    steps: list[MeasuredStep]


@dataclass(frozen=True)
class Correction:
    """The factor for predicted steps, and its sources."""

    factor: float
    made_from: str


@dataclass(frozen=True)
class _Estimate:
    """The fields of an estimate that a profile needs."""

    config: RunConfig
    device: str
    processes: int
    steps: list[StepTimes]


_ESTIMATE = TypeAdapter(_Estimate)


def gpu_named(device: str) -> str | None:
    """Return the entry of conf/gpus.yaml for a device such as `NVIDIA A100-SXM4-40GB`; None for other devices."""
    names = [name for name in gpus() if is_named(name, device)]
    if len(names) > 1:
        names = [name for name in names if f"{gpus()[name].memory:g}GB" in device]
    other = any(word in device.upper() for word in ("PCI", "NVL"))
    return names[0] if len(names) == 1 and not other else None


def read_profiles(runs: Path) -> tuple[list[Profile], list[str]]:
    """Return the profiles of all estimates and finished runs below a folder, and a note per damaged estimate."""
    profiles, notes = [], []
    for path in saved_estimates(runs):
        try:
            profiles.append(_of_estimate(_ESTIMATE.validate_json(path.read_bytes())))
        except (UserError, OSError, ValidationError, AssertionError):
            notes.append(f"{path} cannot be read and is skipped; remove it, and run `train estimate` again")
    profiles += [_of_run(metrics.parent) for metrics in sorted(runs.glob("*/metrics.jsonl"))]
    return [profile for profile in profiles if profile is not None], notes


def _of_estimate(estimate: _Estimate) -> Profile | None:
    """Return an estimate as a profile; None for an unknown GPU."""
    gpu = gpu_named(estimate.device)
    if gpu is None:
        return None
    steps = [
        MeasuredStep({StepKind(one.view, tuple(one.acting)): 1}, statistics.fmean(one.step_seconds))
        for one in estimate.steps
    ]
    return Profile(gpu, plan_for(estimate.config, estimate.processes), "an estimate", steps)


def _of_run(path: Path) -> Profile | None:
    """Return a finished run as a profile; None for an unknown GPU or an unreadable run."""
    folder, run = RunFolder(path), read_run(path)
    gpu = gpu_named(str(run.device))
    if gpu is None or run.state != "finished":
        return None
    try:
        plan = plan_for(read(folder.config), run.world_sizes[0])
        steps = list(_of_records(plan, read_metrics(folder.metrics)))
    except (OSError, ValueError, KeyError, AttributeError, AssertionError, UserError):
        return None
    return Profile(gpu, plan, f"run {path.name}", steps) if steps else None


def _of_records(plan: Plan, rows: Iterable[Mapping[str, Any]]) -> Iterator[MeasuredStep]:
    """Return the mean step of each image size in the records, from the second record of a size on."""
    kinds = step_kinds(plan)
    seconds: dict[int, list[float]] = {}
    for row in rows:
        if row["kind"] == "train":
            took = row["step_seconds"] - row["data_wait_seconds"]
            seconds.setdefault(row["view"], []).append(took)
    for size, times in seconds.items():
        mix = {kind: len(steps) for kind, steps in kinds.items() if kind.view == size}
        later = times[1:]
        if mix and later and min(later) > 0:
            yield MeasuredStep(mix, statistics.fmean(later))


def correction(plan: Plan, gpu: str, profiles: Iterable[Profile], values: Mapping[str, Any]) -> Correction:
    """Return the correction from measurements of the same steps, else of the same GPU, else of any GPU.

    Other steps are weaker evidence: they are averaged with one more profile without an error.
    """

    def launched(config: RunConfig) -> tuple[bool, bool]:
        return is_on(config.compile), is_on(config.cuda_graphs)

    # note: steps that are yet to be chosen may be of any kind
    own = launched(plan.config)
    fit = [one for one in profiles if is_open(plan.config) or launched(one.plan.config) == own]
    steps = computed(plan)
    ratios = [(profile, ratio) for profile in fit if (ratio := _ratio(profile, values)) is not None]
    same = [(p, r) for p, r in ratios if computed(p.plan) == steps]
    near = [(p, r) for p, r in ratios if p.gpu == gpu]
    kinds = (same, "these steps", 0), (near, "other steps on this GPU", 1), (ratios, "other steps", 1)
    for chosen, what, more in kinds:
        if chosen:
            mean = sum(math.log(ratio) for _, ratio in chosen) / (len(chosen) + more)
            where = ", ".join(dict.fromkeys(f"{p.plan.world_size} x {p.gpu} ({p.source})" for p, _ in chosen))
            return Correction(math.exp(mean), f"measured: {what} on {where}, times the ratio of the machines")
    return Correction(1.0, f"published rates of other programs ({page('cost', 'prediction')}); nothing was measured")


def _ratio(profile: Profile, values: Mapping[str, Any]) -> float | None:
    """Return measured over predicted seconds, the geometric mean over sizes; None if its steps are not counted."""
    counted = cached_steps(profile.plan)
    if counted is None:
        return None
    config = profile.plan.config
    network = config.hardware.network or math.inf
    rates = Rates(gpus()[profile.gpu], profile.plan.world_size, values, config.launch.nnodes, network)
    parts = {StepKind(step.view, step.acting): rates.parts(step, config).seconds for step in counted}
    logs = []
    for one in profile.steps:
        if one.mix.keys() <= parts.keys():
            predicted = statistics.fmean([parts[kind] for kind in one.mix], one.mix.values())
            logs.append(math.log(one.seconds / predicted))
    return math.exp(statistics.fmean(logs)) if logs else None
