"""metrics.jsonl: one JSON object a line, only ever appended to; everything shown of a run is computed from it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

Row = dict[str, Any]


@dataclass(frozen=True)
class Record:
    """What all lines have: optimizer steps done, and the wall-clock time in seconds since 1970."""

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
    loss: float
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
    loss: float
    samples: int
    seconds: float
    train_seconds: float


@dataclass(frozen=True)
class EpochRecord(Record):
    """A finished epoch; `seconds` on the training clock."""

    kind: ClassVar[str] = "epoch"
    epoch: int
    loss: float
    seconds: float
    images_per_second: float
    data_wait_seconds: float
    train_seconds: float


@dataclass(frozen=True)
class NonFiniteRecord(Record):
    """The loss or gradients of the step were not finite; `indices` are its samples, rank by rank."""

    kind: ClassVar[str] = "nonfinite"
    loss: float
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


def read_metrics(path: Path) -> list[Row]:
    """All valid records in order; what a resume made void is left out. A missing file has none."""
    return without_void(read_rows(path))


def read_rows(path: Path) -> list[Row]:
    """All records in order, those that a resume made void too. A missing file has none."""
    if not path.exists():
        return []
    return [row for row in map(parse_line, path.read_bytes().splitlines()) if row is not None]


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
