"""metrics.jsonl: one JSON object per line, append-only; all figures of a run are computed from it."""

import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

from launcher.config.formats import RENAMED_FIELDS
from launcher.config.tasks import Goal

Row = dict[str, Any]

_START = time.time() - time.monotonic()

_STEP = b'{"kind": "train"'
_LARGEST = {int: 2**63, float: 1e100}
_THIN_BYTES = 2**23  # about 25,000 records
_END_BYTES = 2**16  # about 200 records


def now() -> float:
    """Return the seconds since 1970 by the clock of this process's start: setting the clock moves no later time."""
    return _START + time.monotonic()


@dataclass(frozen=True)
class Record:
    """The fields of every line: completed optimizer steps, and the wall-clock time in seconds since 1970."""

    kind: ClassVar[str]
    step: int
    time: float

    def row(self) -> Row:
        """Return the values of the line; numbers that JSON lacks become null."""
        return {"kind": self.kind, **{key: _plain(value) for key, value in asdict(self).items()}}


@dataclass(frozen=True)
class StartRecord(Record):
    """The run started; `primary` is its main metric, of which `better` values are higher or lower.

    `class_weights` are those of the loss, in the order of the classes' names; None without any.
    """

    kind: ClassVar[str] = "start"
    world_size: int
    total_steps: int
    epochs: int
    device: str
    precision: str
    primary: str
    better: str
    class_weights: list[float] | None = None


@dataclass(frozen=True)
class ResumeRecord(Record):
    """Training resumed at `step`: records of later steps are void."""

    kind: ClassVar[str] = "resume"
    world_size: int


@dataclass(frozen=True)
class TrainRecord(Record):
    """Means over the steps since the last line; `train_seconds` excludes evaluations and checkpoints.

    With several ranks also values of each: its seconds of waiting for data in a step; its memory; the percentage of the
    last moments in which its GPU computed, -1 if unknown.
    """

    kind: ClassVar[str] = "train"
    epoch: float
    loss: float | None
    lr: float
    view: int
    samples_per_second: float
    step_seconds: float
    data_wait_seconds: float
    gpu_memory_bytes: int | None
    train_seconds: float
    rank_wait_seconds: list[float] | None = None
    rank_gpu_memory_bytes: list[int] | None = None
    gpu_use: float | None = None
    rank_gpu_use: list[float] | None = None


@dataclass(frozen=True)
class EvalRecord(Record):
    """An evaluation: the task's metrics by name, the primary one first; its seconds, and the training clock."""

    kind: ClassVar[str] = "eval"
    epoch: float
    metrics: Mapping[str, float | None]
    loss: float | None
    samples: int
    seconds: float
    train_seconds: float


@dataclass(frozen=True)
class HeldOutRecord(EvalRecord):
    """The evaluation of the finished run on the images of `dataset.test_path`."""

    kind: ClassVar[str] = "test"


@dataclass(frozen=True)
class EpochRecord(Record):
    """A completed epoch; `seconds` on the training clock."""

    kind: ClassVar[str] = "epoch"
    epoch: int
    loss: float | None
    seconds: float
    samples_per_second: float
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
class WarningRecord(Record):
    """What slows the run, by `title`; `text` has the evidence and what to do."""

    kind: ClassVar[str] = "warning"
    title: str
    text: str


@dataclass(frozen=True)
class EndRecord(Record):
    """The run ended; `finished` is false if it was stopped, `ended_by` the key that ended it before its length."""

    kind: ClassVar[str] = "end"
    finished: bool
    train_seconds: float
    eval_seconds: float
    save_seconds: float
    ended_by: str | None = None


@dataclass(frozen=True)
class LostRecord(Record):
    """The number of lost records before this one: the disk was full, and so was the buffer in memory."""

    kind: ClassVar[str] = "lost"
    records: int


def parse_line(line: bytes | str) -> Row | None:
    """Parse a line; return None if it is not a record, such as a truncated line."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not (isinstance(row, dict) and isinstance(row.get("kind"), str) and type(row.get("step")) is int):
        return None
    for before, name in RENAMED_FIELDS.items():
        if before in row:
            row.setdefault(name, row.pop(before))
    return row


def is_whole(row: Row) -> bool:
    """Return whether a record has all fields of its kind with valid types; an unknown kind may have any fields."""
    return all(_fits(row.get(name), hint) for name, hint in _required().get(row["kind"], {}).items())


def read_metrics(path: Path) -> list[Row]:
    """Read the valid records in order, without void ones; empty for a missing file."""
    return without_void(filter(is_whole, read_rows(path)))


def read_attempts(attempts: Path, metrics: Path) -> list[Row]:
    """Read the records of the last start and the resumes since; of a run without a file of attempts all valid records.

    Raises as `read_rows`.
    """
    rows = read_metrics(attempts)
    return rows if any(row["kind"] == "start" for row in rows) else read_metrics(metrics)


def read_last(path: Path) -> list[Row]:
    """Read the valid records at the end of the file, at most the last 200 or so; empty for a missing file.

    Raises as `read_rows`.
    """
    lines = read_last_lines(path, _END_BYTES) if path.exists() else []
    return without_void(filter(is_whole, filter(None, map(parse_line, lines))))


def read_last_lines(path: Path, size: int) -> list[bytes]:
    """Return the whole lines in the last `size` bytes of a file.

    Raises OSError if it cannot be read.
    """
    with path.open("rb") as file:
        start = max(0, file.seek(0, os.SEEK_END) - size - 1)
        file.seek(start)
        lines = file.read(size + 1).split(b"\n")
    return lines[1:] if start else lines


def is_finished(path: Path) -> bool:
    """Return whether the records are those of a finished run.

    Raises as `read_rows`.
    """
    # note: the record of the end is followed by those of a resume alone
    return any(row["kind"] == "end" and row["finished"] for row in read_last(path))


def read_rows(path: Path, *, outline: bool = False) -> list[Row]:
    """Read the records in order, including void ones; empty for a missing file.

    Of consecutive `train` records, which are most of a file, the `outline` has only the last, and other readers of a
    large file every n-th and the last: 25,000 or so.

    Raises OSError if it cannot be read.
    """
    if not path.exists():
        return []
    stride = 1 + path.stat().st_size // _THIN_BYTES
    rows: list[Row] = []
    with path.open("rb") as file:
        for number, (line, following) in enumerate(pairwise(chain(file, [b""]))):
            is_thin = line.startswith(_STEP) and following.startswith(_STEP) and (outline or number % stride)
            if not is_thin and (row := parse_line(line.decode(errors="replace"))) is not None:
                rows.append(row)
    return rows


def without_void(rows: Iterable[Row]) -> list[Row]:
    """Remove the records of steps that a resume, or a new start in the same folder, repeats."""
    valid: list[Row] = []
    for row in rows:
        if row["kind"] == "start":
            valid = []
        elif row["kind"] == "resume":
            valid = [r for r in valid if r["step"] <= row["step"] and r["kind"] != "end"]
        valid.append(row)
    return valid


def reached(rows: Iterable[Row], goal: Goal) -> Row | None:
    """Return the first evaluation that reaches the goal, or None."""
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
    alternatives = (hint,) if get_origin(hint) is list else get_args(hint) or (hint,)
    kinds = [get_origin(kind) or kind for kind in alternatives]
    if type(value) in (int, float):
        # note: larger numbers are not measurements, and would overflow in arithmetic
        return (type(value) in kinds or float in kinds) and abs(value) < _LARGEST[type(value)]
    return type(value) in kinds


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
