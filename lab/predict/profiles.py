"""What steps took where they were measured, kept for predictions of other machines: below `runs/.profiles`.

`estimate` leaves one, and every finished run on a GPU that is known is made into one. A measured step over the
predicted one is how far the efficiencies are off; where the same step was measured, that carries it to any machine.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from lab.predict.counted import kept_steps, steps_key
from lab.predict.prediction import Rates
from launcher import atomic
from launcher.config.hardware import gpus, is_named
from launcher.config.resolved import read
from launcher.config.schema import RunConfig
from launcher.errors import UserError
from launcher.measure.measurement import Measurement
from launcher.plan.plan import Plan, plan_for
from launcher.plan.step_kinds import StepKind, step_kinds
from launcher.records.folder import RunFolder
from launcher.records.metrics import read_metrics

VERSION = 1
_FOLDER = ".profiles"


@dataclass(frozen=True)
class MeasuredStep:
    """Mean seconds of steps at a side, without waiting for data; `mix` counts them by what acted, joined by spaces."""

    image_size: int
    mix: dict[str, int]
    seconds: float


@dataclass(frozen=True)
class Profile:
    """Steps of one config on GPUs of one kind; `key` names their counts in the cache."""

    version: int
    gpu: str
    world_size: int
    key: str
    compile: str
    cuda_graphs: str
    channels_last: bool
    source: str
    steps: list[MeasuredStep]

    def is_of(self, config: RunConfig) -> bool:
        """Whether its steps were launched as a config's are."""
        return (self.compile, self.cuda_graphs) == (config.compile, config.cuda_graphs)


@dataclass(frozen=True)
class Correction:
    """What predicted steps are multiplied by, and what it was made from."""

    factor: float
    made_from: str


_READ = TypeAdapter(Profile)


def gpu_named(device: str) -> str | None:
    """The entry of conf/gpus.yaml for a device such as `NVIDIA A100-SXM4-40GB`; None of a CPU, or of another module."""
    found = [name for name in gpus() if is_named(name, device)]
    if len(found) > 1:
        found = [name for name in found if f"{gpus()[name].memory:g}GB" in device]
    other = any(word in device.upper() for word in ("PCI", "NVL"))
    return found[0] if len(found) == 1 and not other else None


def keep_profile(plan: Plan, measured: Measurement) -> Path | None:
    """Keep what was measured of a plan's steps; None where it was on no GPU that is known."""
    steps = [
        MeasuredStep(one.image_size, {" ".join(one.acting): 1}, sum(one.step_seconds) / len(one.step_seconds))
        for one in measured.steps
    ]
    gpu = gpu_named(measured.device)
    if gpu is None:
        return None
    key = steps_key(plan)
    name = hashlib.sha256(f"{key} {gpu} {measured.world_size} {plan.config.compile}".encode()).hexdigest()[:16]
    return _write(plan, gpu, "an estimate", steps, f"estimate-{name}")


def _write(plan: Plan, gpu: str, source: str, steps: list[MeasuredStep], name: str) -> Path:
    config = plan.config
    profile = Profile(
        VERSION, gpu, plan.world_size, steps_key(plan), config.compile, config.cuda_graphs,
        config.algorithms.channels_last is not None, source, steps,
    )  # fmt: skip
    path = Path(config.runs) / _FOLDER / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_text(path, json.dumps(asdict(profile), indent=2) + "\n", shared=True)
    return path


def read_profiles(runs: str) -> tuple[list[Profile], list[str]]:
    """All profiles below a folder of runs, those of finished runs made first; and a line for each that is left out."""
    _add_runs(Path(runs))
    profiles, notes = [], []
    for path in sorted((Path(runs) / _FOLDER).glob("*.json")):
        try:
            values = json.loads(path.read_bytes())
            if values.get("version") != VERSION:
                raise ValueError(f"is of version {values.get('version')}, not {VERSION}")
            profiles.append(_READ.validate_python(values))
        except (OSError, ValueError, AttributeError, ValidationError) as error:
            why = str(error) if type(error) is ValueError else "cannot be read"
            notes.append(f"{path} {why}, and is left out; remove it, and measure again")
    return profiles, notes


def _add_runs(runs: Path) -> None:
    for metrics in sorted(runs.glob("*/metrics.jsonl")):
        name = f"run-{metrics.parent.name}"
        if not (runs / _FOLDER / f"{name}.json").exists():
            _add_run(RunFolder(metrics.parent), name, str(runs))


def _add_run(folder: RunFolder, name: str, runs: str) -> None:
    """A finished run as a profile; without a word where it was on no GPU that is known, or cannot be read."""
    try:
        with folder.metrics.open() as lines:
            start = json.loads(next(lines, "{}"))
        gpu = gpu_named(str(start.get("device")))
        if gpu is None:
            return
        rows = list(read_metrics(folder.metrics))
        if not any(row["kind"] == "end" and row["finished"] for row in rows):
            return
        config = read(folder.config)
        plan = plan_for(config, int(start["world_size"]))
        steps = list(_of_records(plan, rows))
    except (OSError, ValueError, KeyError, AttributeError, AssertionError, UserError):
        return
    if steps:
        place = Path(config.runs)
        if place.resolve() == Path(runs).resolve():
            _write(plan, gpu, f"run {folder.path.name}", steps, name)


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
    same = [(p, r) for p, r in ratios if p.key == key]
    near = [(p, r) for p, r in ratios if p.gpu == gpu]
    for chosen, what, more in (
        (same, "these steps", 0),
        (near, "other steps on this GPU", 1),
        (ratios, "other steps", 1),
    ):
        if chosen:
            mean = sum(math.log(ratio) for _, ratio in chosen) / (len(chosen) + more)
            where = ", ".join(dict.fromkeys(f"{p.world_size} x {p.gpu} ({p.source})" for p, _ in chosen))
            return Correction(math.exp(mean), f"measured: {what} on {where}, times the ratio of the machines")
    return Correction(1.0, "published rates of other programs (docs/prediction.md); nothing was measured")


def _ratio(profile: Profile, values: Mapping[str, Any]) -> float | None:
    """Measured over predicted seconds, the geometric mean of its sides; None where its steps are not counted."""
    counted = kept_steps(profile.key)
    if counted is None or profile.gpu not in gpus():
        return None
    rates = Rates(gpus()[profile.gpu], profile.world_size, values)
    how = {"fused": profile.compile == "on", "captured": profile.cuda_graphs == "on"}
    parts = {
        StepKind(step.image_size, step.acting): rates.parts(step, **how, channels_last=profile.channels_last).seconds
        for step in counted
    }
    logs = []
    for one in profile.steps:
        mix = {StepKind(one.image_size, tuple(acting.split())): count for acting, count in one.mix.items()}
        if mix.keys() <= parts.keys():
            predicted = sum(parts[kind] * count for kind, count in mix.items()) / sum(mix.values())
            logs.append(math.log(one.seconds / predicted))
    return math.exp(sum(logs) / len(logs)) if logs else None
