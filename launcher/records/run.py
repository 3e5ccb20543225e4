"""Read a run folder: state, evaluations, times, price, data and environment. Every verb shows runs by this reader."""

import json
import math
import os
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from launcher.config.groups import is_named
from launcher.config.layers import leaves
from launcher.config.resolved import typed_run
from launcher.config.validate import MISSING
from launcher.config.yaml_file import read_mapping
from launcher.counts import count_of
from launcher.errors import MachineError, UserError, first_few, one_line
from launcher.plan.epochs import dilated_epochs
from launcher.records.metrics import Row, is_whole, read_rows, without_void
from launcher.records.progress import wall_seconds
from launcher.records.run_folder import RunFolder, noted_datasets, run_folders
from launcher.records.scales import TOP1, QualityScale, scale_of_run

# interrupted: no record of the end. damaged: a wrong value in a file. unreadable: a file whose content is unknown.
State = Literal["running", "finished", "stopped", "failed", "interrupted", "damaged", "unreadable"]
_SILENT_SECONDS = 600.0


@dataclass(frozen=True)
class Evaluated:
    """One evaluation, after so many minutes of training by the clock; `value` is the metric as recorded."""

    epoch: float
    clock_minutes: float
    top1: float  # percent, or another task's primary metric, negative if lower is better
    value: float = math.nan


@dataclass(frozen=True)
class Times:
    """Seconds by two clocks: of training, and from each start or resume to the last record.

    `training` has no evaluations and checkpoints, and the second epoch's time for the first if that is less, since the
    first also fills caches (Mosaic ResNet deep dive 2022, Evaluation).
    """

    training: float
    wall: float


@dataclass(frozen=True)
class RunSummary:
    """One run folder. Only `finished` runs are measurements; `problem` is why a run failed, or what is damaged."""

    path: Path
    state: State
    problem: str | None
    config: Mapping[str, Any]
    epochs: int | None = None  # after dilation
    device: str | None = None
    evaluations: tuple[Evaluated, ...] = ()  # of the metric
    times: Times | None = None
    world_sizes: tuple[int, ...] = ()  # of the start and each resume
    test_top1: float | None = None  # of the final weights on dataset.test_path, in percent
    metric: QualityScale = TOP1
    ended_by: str | None = None  # the key that ended it before its length
    rows: Sequence[Row] = field(default=(), repr=False)  # the valid records, of consecutive steps the last
    identities: tuple[str, ...] = ()  # of its training data
    environment: Mapping[str, Any] = field(default_factory=dict)
    price: float | None = None  # per hour, for a machine without a price in the config

    @cached_property
    def values(self) -> dict[str, Any]:
        """Return the config's dotted keys and values."""
        return dict(leaves(self.config))

    @property
    def command(self) -> tuple[str, ...]:
        """Return the words that started the run; empty if unknown."""
        return ("train", *map(str, self.environment["command"][1:])) if "command" in self.environment else ()

    @property
    def recipe(self) -> str:
        return str(self.values.get("recipe") or "no recipe")

    @property
    def model(self) -> str:
        return str(self.values.get("model.architecture", self.values.get("model.name", "?")))

    @property
    def dataset(self) -> str:
        return str(self.values.get("dataset.name", "?"))

    @cached_property
    def identity(self) -> str:
        """Return the recorded identity of the data set, or else its name and path."""
        return self.identities[-1] if self.identities else f"{self.dataset} at {data_path(self.values)}"

    @property
    def hardware(self) -> str:
        """Return the devices, with the config's machine name if that machine has such devices."""
        devices = f"{self.world_sizes[0] if self.world_sizes else None}x {self.device}"
        name = self.values.get("hardware.name")
        return f"{name} ({devices})" if name not in (None, "this_machine") and self._is_priced_machine else devices

    @property
    def _is_priced_machine(self) -> bool:
        # note: recipes set the machine of their published results, not the one they run on
        gpu, gpus = self.values.get("hardware.gpu"), self.values.get("hardware.gpus")
        complete = gpus is None or (isinstance(gpus, int) and {gpus * self._machines} == set(self.world_sizes))
        return complete and (gpu is None or is_named(str(gpu), str(self.device)))

    @property
    def _machines(self) -> int:
        nodes = self.values.get("launch.nnodes")
        return nodes if isinstance(nodes, int) else 1

    @property
    def seed(self) -> int | None:
        seed = self.values.get("seed")
        return seed if isinstance(seed, int) else None

    @property
    def length(self) -> int | None:
        """Return the config's epochs after dilation; None if the config lacks them."""
        epochs, dilate = self.values.get("epochs"), self.values.get("schedule.dilate")
        if not isinstance(epochs, int) or not isinstance(dilate, int | float):
            return None
        return dilated_epochs(epochs, dilate) if epochs < 2**63 and 0 < dilate < 1e100 else None

    @property
    def epochs_done(self) -> float:
        return float(max((row["epoch"] for row in self.rows if "epoch" in row), default=0))

    @property
    def best(self) -> Evaluated | None:
        finite = [one for one in self.evaluations if not math.isnan(one.top1)]
        return max(finite, key=lambda one: one.top1, default=None)

    @property
    def unusable(self) -> str | None:
        """Return why the finished run is no measurement, mostly because of a resume; None without a reason."""
        if self.top1 is None or not (math.isfinite(self.top1) and self.times and self.times.training > 0):
            return f"it has no {self.metric.title}, or time, that is a finite number"
        sizes = list(dict.fromkeys(self.world_sizes))
        if len(sizes) > 1:
            return f"a resume changed the number of processes: {' and '.join(map(str, sizes))}"
        if len(set(self.identities)) > 1:
            return "a resume used another data set"
        if self.epochs is not None and self.length is not None and self.epochs != self.length:
            lengths = f"from {self.epochs} to {count_of(self.length, 'epoch')}"
            return f"a resume changed the length, and so the schedule, {lengths}"
        return None

    @property
    def top1(self) -> float | None:
        """Return the final accuracy in percent; None if the run has not finished."""
        return self.evaluations[-1].top1 if self.state == "finished" and self.evaluations else None

    def money(self, clock: Literal["training", "wall"]) -> float | None:
        """Return the price of the time by a clock; None if the machine has no price."""
        price = self.values.get("hardware.price_per_hour") if self._is_priced_machine else None
        price = self.price if price is None else price
        if not isinstance(price, int | float) or self.times is None:
            return None
        return float(price * self._machines * getattr(self.times, clock) / 3600)

    @property
    def currency(self) -> str:
        return str(self.values.get("hardware.currency", "USD"))


def data_path(values: Mapping[str, Any]) -> str | None:
    """Return the path of the images, or else of the FFCV files, in a config's dotted values."""
    paths = map(values.get, ("dataset.path", "dataloader.folder", "dataloader.train"))
    return next((str(path) for path in paths if path is not None), None)


def find_runs(paths: Iterable[str]) -> list[Path]:
    """Return the run folders at or below the paths, sorted, without duplicates.

    Raises UserError if a path is not a folder, or contains no run folder.
    """
    folders: dict[Path, None] = {}
    for name in paths:
        below = [folder.path for folder in run_folders(Path(name))]
        if not below:
            reason = "contains no run folder" if os.path.isdir(name) else "is not a folder"  # noqa: PTH112
            raise UserError(f"{name} {reason}; pass run folders such as runs/mild-1, or their parent such as runs")
        folders.update(dict.fromkeys(sorted(below)))
    return list(folders)


def read_run(path: Path, metric: str | None = None) -> RunSummary:
    """Read one run folder, by a metric or its own; errors become its state and problem."""
    folder, facts, config, problem = RunFolder(path), dict[str, Any](), dict[str, Any](), None
    state: State = "damaged"
    try:
        config, problem = _config(folder.config)
        facts = _facts_of(read_rows(folder.metrics, outline=True), metric, config)
        facts["identities"] = noted_datasets(folder)
    except (UserError, IsADirectoryError) as error:
        problem = problem or one_line(str(error).replace(f"{path}{os.sep}", ""))
    except (MachineError, OSError) as error:
        state, problem = "unreadable", one_line(str(error).replace(f"{path}{os.sep}", ""))
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        problem = problem or f"{folder.metrics.name}: a record has a wrong value: {error}"
    if problem is None:
        state, problem = _state(folder, facts)
    return RunSummary(path, state, problem, config, environment=_environment(folder.environment), **facts)


def quality(row: Row, metric: str | None = None) -> float:
    """Return a metric, or the primary (first) one, of an `eval` or `test` record; NaN for one that was not finite."""
    values = row["metrics"]
    primary, *_ = values.values()
    value = primary if metric is None else values[metric]
    return math.nan if value is None else float(value)


def _facts_of(rows: list[Row], metric: str | None, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a RunSummary that the records hold, by a metric or the primary one.

    Raises KeyError, TypeError, ValueError, OverflowError or AttributeError if a record has a wrong value.
    """
    # note: float would read a number that is a text, such as "nan"
    if wrong := [row["kind"] for row in rows if not is_whole(row)]:
        raise ValueError(first_few(wrong))
    valid = without_void(rows)
    start = next((row for row in valid if row["kind"] == "start"), None)
    if start is None:
        return {"rows": valid}
    scale = scale_of_run(start, metric, dict(leaves(config)))
    measured = [row for row in valid if row["kind"] in ("eval", "test")]
    values = [(row, quality(row, metric)) for row in measured if metric in (None, *row["metrics"])]
    return {
        "epochs": int(start["epochs"]),
        "device": str(start["device"]),
        "evaluations": tuple(
            Evaluated(float(row["epoch"]), float(row["train_seconds"]) / 60, scale.factor * value, value)
            for row, value in values
            if row["kind"] == "eval"
        ),
        "metric": scale,
        "times": Times(_training_seconds(valid), wall_seconds(rows)),
        "ended_by": next((row.get("ended_by") for row in valid[::-1] if row["kind"] == "end"), None),
        "test_top1": next((scale.factor * value for row, value in values[::-1] if row["kind"] == "test"), None),
        "world_sizes": tuple(int(row["world_size"]) for row in valid if row["kind"] in ("start", "resume")),
        "rows": valid,
    }


def _training_seconds(valid: list[Row]) -> float:
    training = max((float(row["train_seconds"]) for row in valid if "train_seconds" in row), default=0.0)
    seconds = {row["epoch"]: row["seconds"] for row in valid if row["kind"] == "epoch"}
    # note: a first epoch that takes less than the second has filled no caches; the run takes no longer than its clock
    return training - max(0.0, seconds[1] - seconds[2]) if 1 in seconds and 2 in seconds else training


def _config(path: Path) -> tuple[dict[str, Any], str | None]:
    """Return a config's values, and its error if it is invalid; keys that a newer version has added may be missing."""
    values = read_mapping(path)
    try:
        typed_run(values, path.name, imports=False)
    except UserError as error:
        if wrong := [str(problem) for problem in error.problems if problem.message != MISSING]:
            return values, f"{path.name}: {first_few(wrong)}"
    return values, None


def _environment(path: Path) -> dict[str, Any]:
    """Return the whole values of environment.json; empty if it cannot be read."""
    kinds = {"command": list, "packages": dict, "gpus": list}
    try:
        values = json.loads(path.read_bytes())
        return {key: value for key, value in values.items() if isinstance(value, kinds.get(key, object))}
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}


def _state(folder: RunFolder, facts: Mapping[str, Any]) -> tuple[State, str | None]:
    valid = facts["rows"]
    end = next((row for row in reversed(valid) if row["kind"] == "end"), None)
    if end is not None and "times" not in facts:
        return "damaged", f"{folder.metrics.name} has no record of the start"
    if end is not None and end["finished"]:
        has_evaluation = any(row["kind"] == "eval" for row in valid)
        return ("finished", None) if has_evaluation else ("damaged", "the run ended without an evaluation")
    if folder.is_locked():
        return "running", None
    if end is not None:
        return "stopped", None
    if (reason := folder.failure_reason()) is not None:
        return "failed", reason
    # note: the kernel lists only the locks of this machine
    is_recent = bool(valid) and time.time() - valid[-1]["time"] < _SILENT_SECONDS
    return "running" if is_recent and folder.hosts() - {socket.gethostname()} else "interrupted", None
