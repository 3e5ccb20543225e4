"""metrics.jsonl: one JSON object a line, only ever appended to; everything shown of a run is computed from it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

from launcher.config.tasks import Goal

Row = dict[str, Any]

_LARGEST = {int: 2**63, float: 1e100}
_MOST_WAITING = 2**24  # bytes; some 50,000 records


@dataclass(frozen=True)
class Record:
    """What all lines have: optimizer steps done, and the wall-clock time in seconds since 1970."""

    kind: ClassVar[str]
    step: int
    time: float

    def row(self) -> Row:
        """The line's values; numbers that JSON lacks become null."""
        return {"kind": self.kind, **{key: _plain(value) for key, value in asdict(self).items()}}


@dataclass(frozen=True)
class StartRecord(Record):
    """The run began; `primary` is the metric that it is judged by, of which `better` values are higher or lower."""

    kind: ClassVar[str] = "start"
    world_size: int
    total_steps: int
    epochs: int
    device: str
    precision: str
    primary: str
    better: str


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
    """One evaluation: the task's metrics by name, the primary one first; the seconds it took, the training clock."""

    kind: ClassVar[str] = "eval"
    epoch: float
    metrics: Mapping[str, float | None]
    loss: float | None
    samples: int
    seconds: float
    train_seconds: float


@dataclass(frozen=True)
class HeldOutRecord(EvalRecord):
    """The finished run on the images of `dataset.test_path`."""

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
    """The run ended: finished, or stopped before."""

    kind: ClassVar[str] = "end"
    finished: bool
    train_seconds: float
    eval_seconds: float
    save_seconds: float


@dataclass(frozen=True)
class LostRecord(Record):
    """So many records before this one are lost: the disk was full for longer than they could wait in memory."""

    kind: ClassVar[str] = "lost"
    records: int


class MetricsWriter:
    """Appends records; those that a full disk does not take wait in memory, and are written once it takes them."""

    def __init__(self, path: Path):
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        # note: a line torn by an earlier kill must not swallow the next one
        torn = path.stat().st_size and not path.read_bytes().endswith(b"\n")
        self._waiting = bytearray(b"\n" if torn else b"")
        self._lost = 0

    def write(self, record: Record) -> None:
        """Write a record, after those that wait.

        Raises:
            OSError: the disk does not take them; they wait.
        """
        line = json.dumps(record.row(), allow_nan=False).encode() + b"\n"
        if len(self._waiting) + len(line) > _MOST_WAITING:
            self._lost += 1
        else:
            self._waiting += line
        self._flush()
        if self._lost:
            lost, self._lost = self._lost, 0
            self.write(LostRecord(record.step, record.time, lost))

    def close(self) -> None:
        """Raises OSError where the disk does not take what waits: it is lost."""
        try:
            self._flush()
        finally:
            os.close(self._file)

    def _flush(self) -> None:
        while self._waiting:
            # note: a disk that fills up takes a part of a line; the rest of it comes first the next time
            del self._waiting[: os.write(self._file, self._waiting)]


def parse_line(line: bytes | str) -> Row | None:
    """A line's values, or None if it is no record: torn, or not ours."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    known = isinstance(row, dict) and isinstance(row.get("kind"), str)
    return row if known and type(row.get("step")) is int else None


def is_whole(row: Row) -> bool:
    """Whether a record has all values of its kind, of their types; an unknown kind may have any."""
    return all(_fits(row.get(name), hint) for name, hint in _required().get(row["kind"], {}).items())


def read_metrics(path: Path) -> list[Row]:
    """All whole records in order; without what a resume made void. A missing file has none."""
    return without_void(filter(is_whole, read_rows(path)))


def is_finished(path: Path) -> bool:
    """Whether the records are those of a run that came to its end."""
    return any(row["kind"] == "end" and row["finished"] for row in read_metrics(path))


def read_rows(path: Path) -> list[Row]:
    """All records in order, those that a resume made void too. A missing file has none."""
    if not path.is_file():
        return []
    # note: decoded at once, a study reads many
    lines = path.read_bytes().decode("utf-8", errors="replace").split("\n")
    return [row for row in map(parse_line, lines) if row is not None]


def without_void(rows: Iterable[Row]) -> list[Row]:
    """The records without those of steps that a resume, or a start from the beginning, went back behind."""
    valid: list[Row] = []
    for row in rows:
        if row["kind"] == "start":
            valid = []
        elif row["kind"] == "resume":
            valid = [r for r in valid if r["step"] <= row["step"] and r["kind"] != "end"]
        valid.append(row)
    return valid


def scalars(record: Record) -> dict[str, float]:
    """A record's finite numbers as `train/loss`: its kind and the name in metrics.jsonl; step and time stand apart."""
    row = record.row()
    values = {**row, **row.get("metrics", {})}
    return {
        f"{record.kind}/{name}": value
        for name, value in values.items()
        if type(value) in (int, float) and name not in ("step", "time")
    }


def reached(rows: Iterable[Row], goal: Goal) -> Row | None:
    """The first evaluation at the goal, or None if there is none yet."""
    return next((row for row in rows if row["kind"] == "eval" and goal.is_reached(row["metrics"])), None)


def record_types(parent: type[Record] = Record) -> Iterator[type[Record]]:
    """Yield every type of record, including those derived from another one."""
    for record in parent.__subclasses__():
        yield record
        yield from record_types(record)


@cache
def _required() -> dict[str, dict[str, Any]]:
    """Map each kind to the names and types of its fields."""
    return {
        record.kind: {field.name: get_type_hints(record)[field.name] for field in fields(record)}
        for record in record_types()
    }


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) is Mapping:
        keys, values = get_args(hint)
        return type(value) is dict and all(_fits(k, keys) and _fits(v, values) for k, v in value.items())
    kinds = (get_origin(hint),) if get_origin(hint) is list else get_args(hint) or (hint,)
    if type(value) in (int, float):
        # note: anything beyond these is no measurement, and would not survive arithmetic
        return (type(value) in kinds or float in kinds) and abs(value) < _LARGEST[type(value)]
    return type(value) in kinds


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
