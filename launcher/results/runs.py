"""Read run folders for a study; a damaged or unfinished one gets that state and raises no error."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from launcher.config.groups import is_named
from launcher.config.layers import leaves
from launcher.config.resolved import typed_run
from launcher.config.validate import MISSING
from launcher.config.yaml_file import read_mapping
from launcher.counts import count_of
from launcher.data.listing import is_folder
from launcher.errors import MachineError, Problem, UserError, first_few
from launcher.plan.epochs import dilated_epochs
from launcher.records.metrics import Row, is_whole, read_rows, without_void
from launcher.records.progress import wall_seconds
from launcher.records.run_folder import RunFolder, noted_datasets, run_folders
from launcher.results.scales import TOP1, QualityScale, scale_of_run

State = Literal["finished", "stopped", "running", "unfinished", "damaged"]


@dataclass(frozen=True)
class Evaluated:
    """One evaluation, after so many minutes of training by the clock."""

    epoch: float
    clock_minutes: float
    top1: float  # percent, or another task's primary metric, negative if lower is better


@dataclass(frozen=True)
class Times:
    """Seconds of one run.

    `counted`: training without evaluations and checkpoints, with the first epoch's time replaced by the second's if
    that is less, since the first also fills caches (Mosaic ResNet deep dive 2022, Evaluation).
    `wall`: from the first record to the last, without interruptions.
    """

    counted: float
    wall: float


@dataclass(frozen=True)
class RunSummary:
    """One run folder. Only `finished` runs are measurements; `problem` is the error of a damaged run."""

    path: Path
    state: State
    problem: str | None
    config: Mapping[str, Any]
    command: tuple[str, ...]
    epochs: int | None = None  # after dilation
    world_size: int | None = None
    device: str | None = None
    evaluations: tuple[Evaluated, ...] = ()
    times: Times | None = None
    world_sizes: tuple[int, ...] = ()  # of the start and each resume
    price: float | None = None  # per hour, for a machine without a price in the config
    test_top1: float | None = None  # of the final weights on dataset.test_path, in percent
    metric: QualityScale = TOP1
    ended_by: str | None = None  # the key that ended it before its length
    identities: tuple[str, ...] = ()  # of its training data

    @cached_property
    def values(self) -> dict[str, Any]:
        """Return the config's dotted keys and values."""
        return dict(leaves(self.config))

    @property
    def recipe(self) -> str:
        return str(self.values.get("recipe") or "no recipe")

    @property
    def model(self) -> str:
        return str(self.values.get("model.architecture", self.values.get("model.name", "?")))

    @property
    def dataset(self) -> str:
        return str(self.values.get("dataset.name", "?"))

    @property
    def data_path(self) -> str | None:
        """Return the path of the images, or else of the FFCV files."""
        return data_path(self.values)

    @cached_property
    def identity(self) -> str:
        """Return the recorded identity of the data set, or else its name and path."""
        return self.identities[-1] if self.identities else f"{self.dataset} at {self.data_path}"

    @property
    def hardware(self) -> str:
        """Return the devices, with the config's machine name if that machine has such devices."""
        devices = f"{self.world_size}x {self.device}"
        name = self.values.get("hardware.name")
        return f"{name} ({devices})" if name not in (None, "this_machine") and self._is_priced_machine else devices

    @property
    def _is_priced_machine(self) -> bool:
        # note: recipes set the machine of their published results, not the one they run on
        gpu, gpus = self.values.get("hardware.gpu"), self.values.get("hardware.gpus")
        complete = gpus is None or (isinstance(gpus, int) and gpus * self._machines == self.world_size)
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
    def mixed(self) -> str | None:
        """Return the reason why a resume made the run unusable as a measurement; None without one."""
        sizes = list(dict.fromkeys(self.world_sizes))
        if len(sizes) > 1:
            return f"a resume changed the number of processes: {' and '.join(map(str, sizes))}"
        if len(set(self.identities)) > 1:
            return "a resume used another data set"
        planned = _length(self.values)
        if self.epochs is not None and planned is not None and self.epochs != planned:
            return (
                f"a resume changed the length, and so the schedule, from {self.epochs} to {count_of(planned, 'epoch')}"
            )
        return None

    @property
    def top1(self) -> float | None:
        """Return the final accuracy in percent; None if the run has not finished."""
        return self.evaluations[-1].top1 if self.state == "finished" and self.evaluations else None

    @property
    def money(self) -> float | None:
        """Return the price of the counted training time; None if the machine has no price."""
        price = self.values.get("hardware.price_per_hour") if self._is_priced_machine else None
        price = self.price if price is None else price
        if not isinstance(price, int | float) or self.times is None:
            return None
        return price * self._machines * self.times.counted / 3600


def data_path(values: Mapping[str, Any]) -> str | None:
    """Return the path of the images, or else of the FFCV files, in a config's dotted values."""
    keys = ("dataset.path", "dataloader.folder", "dataloader.train")
    return next((str(values[key]) for key in keys if values.get(key) is not None), None)


def find_runs(paths: Iterable[str]) -> list[Path]:
    """Return the run folders at or below the paths, sorted, without duplicates.

    Raises UserError if a path is not a folder, or contains no run folder.
    """
    folders: dict[Path, None] = {}
    for name in paths:
        below = [folder.path for folder in run_folders(Path(name))]
        if not below:
            reason = "contains no run folder" if is_folder(Path(name)) else "is not a folder"
            raise UserError(f"{name} {reason}; pass run folders such as runs/mild-1, or their parent such as runs")
        folders.update(dict.fromkeys(sorted(below)))
    return list(folders)


def read_run(path: Path, metric: str | None = None) -> RunSummary:
    """Read one run folder, by a metric or its own; errors become its state and problem."""
    folder = RunFolder(path)
    config, problem = _config(folder.config)
    command = _command(folder.environment)
    rows: list[Row] = []
    facts: dict[str, Any] = {}
    identities: tuple[str, ...] = ()
    try:
        rows = read_rows(folder.metrics, outline=True)
        read = _facts_of(rows, metric, config)
        # note: float would read a number that is a text, such as "nan"
        if wrong := [row["kind"] for row in rows if not is_whole(row)]:
            raise ValueError(first_few(wrong))
        facts, identities = read, noted_datasets(folder)
    except OSError as error:
        problem = problem or f"{folder.metrics.name}: {error.strerror}"
    except (UserError, MachineError) as error:
        problem = problem or str(error).replace(str(folder.metrics), folder.metrics.name)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        problem = problem or f"{folder.metrics.name}: a record has a wrong value: {error}"
    state, problem = _state(folder, rows, facts, problem)
    return RunSummary(path, state, problem, config, command, **facts, identities=identities)


def quality(row: Row, metric: str | None = None) -> float:
    """Return a metric, or the primary (first) one, of an `eval` or `test` record.

    Raises UserError, KeyError, TypeError, ValueError or AttributeError if the record lacks it.
    """
    values = row["metrics"]
    if metric is not None and metric not in values:
        raise UserError(Problem(f"the run has only {', '.join(values)}; choose one of them", "--metric", metric))
    primary, *_ = values.values()
    return float(primary if metric is None else values[metric])


def _facts_of(rows: list[Row], metric: str | None = None, config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the fields of a RunSummary that the records hold, by a metric or the primary one; none before their start.

    Raises UserError, KeyError, TypeError or ValueError if a record lacks a value, or has one of the wrong type.
    """
    valid = without_void(rows)
    start = next((row for row in valid if row["kind"] == "start"), None)
    if start is None:
        return {}
    scale = scale_of_run(start, metric, dict(leaves(config or {})))
    evaluations = tuple(
        Evaluated(float(row["epoch"]), float(row["train_seconds"]) / 60, scale.factor * quality(row, metric))
        for row in valid
        if row["kind"] == "eval"
    )
    return {
        "epochs": int(start["epochs"]),
        "world_size": int(start["world_size"]),
        "device": str(start["device"]),
        "evaluations": evaluations,
        "metric": scale,
        "times": Times(_counted(valid), wall_seconds(rows)),
        "ended_by": next((row.get("ended_by") for row in reversed(valid) if row["kind"] == "end"), None),
        "test_top1": next(
            (scale.factor * quality(row, metric) for row in reversed(valid) if row["kind"] == "test"), None
        ),
        "world_sizes": tuple(int(row["world_size"]) for row in valid if row["kind"] in ("start", "resume")),
    }


def _counted(valid: list[Row]) -> float:
    training = max((float(row["train_seconds"]) for row in valid if "train_seconds" in row), default=0.0)
    seconds = {row["epoch"]: float(row["seconds"]) for row in valid if row["kind"] == "epoch"}
    # note: a first epoch that takes less than the second has filled no caches; the run takes no longer than its clock
    return training - max(0.0, seconds[1] - seconds[2]) if 1 in seconds and 2 in seconds else training


def _length(values: Mapping[str, Any]) -> int | None:
    """Return the epochs after dilation; None if the config lacks them."""
    epochs, dilate = values.get("epochs"), values.get("schedule.dilate")
    if not isinstance(epochs, int) or not isinstance(dilate, int | float):
        return None
    return dilated_epochs(epochs, dilate) if epochs < 2**63 and 0 < dilate < 1e100 else None


def _config(path: Path) -> tuple[Mapping[str, Any], str | None]:
    """Return a config's values, and its error if it is invalid; keys that a newer version has added may be missing."""
    try:
        values = read_mapping(path)
    except (UserError, MachineError) as error:
        return {}, str(error).replace(str(path), path.name)
    try:
        typed_run(values, path.name, imports=False)
    except UserError as error:
        if wrong := [str(problem) for problem in error.problems if problem.message != MISSING]:
            return values, f"{path.name}: {first_few(wrong)}"
    return values, None


def _command(path: Path) -> tuple[str, ...]:
    try:
        words = json.loads(path.read_bytes())["command"]
        return ("train", *map(str, words[1:]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ()


def _state(
    folder: RunFolder, rows: list[Row], facts: Mapping[str, Any], problem: str | None
) -> tuple[State, str | None]:
    if problem is not None:
        return "damaged", problem
    ends = [row for row in without_void(rows) if row["kind"] == "end"]
    if not ends:
        return ("running", None) if folder.is_locked() else ("unfinished", folder.failure_reason())
    if not facts:
        return "damaged", f"{folder.metrics.name} has no record of the start"
    if not ends[-1].get("finished"):
        return ("running", None) if folder.is_locked() else ("stopped", None)
    last = facts["evaluations"][-1] if facts["evaluations"] else None
    if last is None:
        return "damaged", "the run ended without an evaluation"
    if not (facts["times"].counted > 0 and all(math.isfinite(v) for v in (facts["times"].counted, last.top1))):
        return "damaged", f"{folder.metrics.name}: time or accuracy is not a finite number"
    return "finished", None
