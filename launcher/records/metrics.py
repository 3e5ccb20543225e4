"""metrics.jsonl: one JSON object a line, only ever appended to; everything shown of a run is computed from it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, Field, asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

from launcher.config.fields import target_accuracy

Row = dict[str, Any]

_LARGEST = {int: 2**63, float: 1e100}


@dataclass(frozen=True)
class Record:
    """What all lines have: optimizer steps done, and the wall-clock time in seconds since 1970.

    A field with a default may be missing from a line, as in the runs of an earlier version.
    """

    kind: ClassVar[str]
    step: int
    time: float

    def row(self) -> Row:
        """The line's values; numbers that JSON lacks become null."""
        values = {"kind": self.kind, **asdict(self)}
        return {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in values.items()}


@dataclass(frozen=True)
class StartRecord(Record):
    kind: ClassVar[str] = "start"
    world_size: int
    total_steps: int
    epochs: int
    device: str
    precision: str


@dataclass(frozen=True)
class ResumeRecord(Record):
    """Training went on from `step`: what had been written of later steps is void."""

    kind: ClassVar[str] = "resume"
    world_size: int


@dataclass(frozen=True)
class TrainRecord(Record):
    """Means over the steps since the last line; `train_seconds` is the training clock, evaluation and saves apart."""

    kind: ClassVar[str] = "train"
    epoch: float
    loss: float | None
    lr: float
    image_size: int
    images_per_second: float
    step_seconds: float
    data_wait_seconds: float
    gpu_memory_bytes: int | None
    train_seconds: float


@dataclass(frozen=True)
class EvalRecord(Record):
    """One evaluation: accuracies in [0, 1], the seconds it took, and the training clock."""

    kind: ClassVar[str] = "eval"
    epoch: float
    top1: float
    top5: float
    loss: float | None
    samples: int
    seconds: float
    train_seconds: float


@dataclass(frozen=True)
class HeldOutRecord(EvalRecord):
    """The finished run on the pictures of `dataset.test_path`."""

    kind: ClassVar[str] = "test"


@dataclass(frozen=True)
class EpochRecord(Record):
    """A finished epoch; `seconds` on the training clock."""

    kind: ClassVar[str] = "epoch"
    epoch: int
    loss: float | None
    seconds: float
    images_per_second: float
    data_wait_seconds: float
    train_seconds: float


@dataclass(frozen=True)
class NonFiniteRecord(Record):
    """The loss or gradients of the step were not finite; `indices` are its samples, rank by rank."""

    kind: ClassVar[str] = "nonfinite"
    loss: float | None
    policy: str
    indices: list[list[int]]


@dataclass(frozen=True)
class EndRecord(Record):
    """The run ended: finished, or asked to stop before."""

    kind: ClassVar[str] = "end"
    finished: bool
    train_seconds: float
    eval_seconds: float
    save_seconds: float


@dataclass(frozen=True)
class Reached:
    """The first evaluation at the target; `seconds` on the training clock, evaluation and saves apart."""

    top1: float
    epoch: float
    step: int
    seconds: float


class MetricsWriter:
    """Appends records, each in one write, so that a line is whole or absent."""

    def __init__(self, path: Path):
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        # note: a line torn by an earlier kill must not swallow the next one
        if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
            os.write(self._file, b"\n")

    def write(self, record: Record) -> None:
        os.write(self._file, json.dumps(record.row(), allow_nan=False).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


def parse_line(line: bytes | str) -> Row | None:
    """A line's values, or None if it is no record: torn, or not ours."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    known = isinstance(row, dict) and isinstance(row.get("kind"), str)
    return row if known and type(row.get("step")) is int else None


def is_whole(row: Row) -> bool:
    """Has a record all values of its kind, each one that its type can be? Of an unknown kind nothing is asked."""
    return all(_fits(row.get(name), hint) for name, hint in _required().get(row["kind"], {}).items())


def read_metrics(path: Path) -> list[Row]:
    """All whole records in order; what a resume made void is left out. A missing file has none."""
    return without_void(filter(is_whole, read_rows(path)))


def read_rows(path: Path) -> list[Row]:
    """All records in order, those that a resume made void too. A missing file has none."""
    if not path.is_file():
        return []
    # note: decoded at once, a study reads many
    lines = path.read_bytes().decode("utf-8", errors="replace").split("\n")
    return [row for row in map(parse_line, lines) if row is not None]


def without_void(rows: Iterable[Row]) -> list[Row]:
    """The records without those of steps that a resume, or a start from the beginning, went back behind."""
    kept: list[Row] = []
    for row in rows:
        if row["kind"] == "start":
            kept = []
        elif row["kind"] == "resume":
            kept = [r for r in kept if r["step"] <= row["step"] and r["kind"] != "end"]
        kept.append(row)
    return kept


def scalars(record: Record) -> dict[str, float]:
    """A record's finite numbers as `train/loss`: its kind and the name in metrics.jsonl; step and time stand apart."""
    return {
        f"{record.kind}/{name}": value
        for name, value in record.row().items()
        if type(value) in (int, float) and name not in ("step", "time")
    }


def closing_scalars(rows: Sequence[Row]) -> dict[str, float]:
    """What a run came to so far: the accuracy at its end and its best, in [0, 1], and the seconds of its clocks."""
    evaluations = [row for row in rows if row["kind"] == "eval"]
    ends = [row for row in rows if row["kind"] == "end"]
    found: dict[str, float] = {}
    if evaluations:
        found |= {"end/top1": evaluations[-1]["top1"], "end/best_top1": max(row["top1"] for row in evaluations)}
    if tests := [row for row in rows if row["kind"] == "test"]:
        found["end/test_top1"] = tests[-1]["top1"]
    if ends:
        found |= {f"end/{clock}": ends[-1][clock] for clock in ("train_seconds", "eval_seconds", "save_seconds")}
    return found


def reached(rows: Sequence[Row], target: str) -> Reached | None:
    """The first evaluation at the target, or None if there is none yet."""
    wanted = target_accuracy(target)
    for row in rows:
        if row["kind"] == "eval" and row["top1"] >= wanted:
            return Reached(row["top1"], row["epoch"], row["step"], row["train_seconds"])
    return None


@cache
def _required() -> dict[str, dict[str, Any]]:
    """Kind to the name and type of each field that a line of it must have."""
    return {
        record.kind: {
            field.name: get_type_hints(record)[field.name] for field in fields(record) if not _optional(field)
        }
        for record in Record.__subclasses__()
    }


def _optional(field: Field[Any]) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def _fits(value: Any, hint: Any) -> bool:
    kinds = (get_origin(hint),) if get_origin(hint) is list else get_args(hint) or (hint,)
    if type(value) in (int, float):
        # note: anything beyond these is no measurement, and would not survive arithmetic
        return (type(value) in kinds or float in kinds) and abs(value) < _LARGEST[type(value)]
    return type(value) in kinds
