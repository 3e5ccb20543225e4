"""A run's records as a study reads them: evaluations, and time as the methodology counts it beside wall clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from launcher.records.metrics import Row, without_void


@dataclass(frozen=True)
class Evaluated:
    """One evaluation; training minutes as the methodology counts them and as the clock ran; loss None if not finite."""

    epoch: float
    minutes: float
    clock_minutes: float
    top1: float  # percent
    loss: float | None


@dataclass(frozen=True)
class Times:
    """Seconds of one run.

    `counted`: training without evaluation and saves, the first epoch's time replaced by the second's, since the first
    also fills caches (Mosaic ResNet deep dive 2022, Evaluation).
    `training`: the training clock as it ran. `wall`: from the first record to the last, interruptions left out.
    """

    counted: float
    training: float
    wall: float


NOTHING: dict[str, Any] = {"epochs": None, "world_size": None, "device": None, "evaluations": (), "times": None}


def quality(row: Row) -> float:
    """The primary metric, which stands first, in an evaluation's or a test's record; a share in [0, 1].

    Raises:
        KeyError, TypeError, ValueError, AttributeError: the record lacks it.
    """
    primary, *_ = row["metrics"].values()
    return float(primary)


def facts_of(rows: list[Row]) -> dict[str, Any]:
    """What the records say, as fields of a RunSummary.

    Raises:
        KeyError, TypeError, ValueError: a record lacks a value, or has one of the wrong type.
    """
    kept = without_void(rows)
    start = next((row for row in kept if row["kind"] == "start"), None)
    if start is None:
        return NOTHING
    correction = counted_at(kept)
    evaluations = tuple(
        Evaluated(
            epoch=float(row["epoch"]),
            minutes=correction(float(row["train_seconds"])) / 60,
            clock_minutes=float(row["train_seconds"]) / 60,
            top1=100 * quality(row),
            loss=None if row["loss"] is None else float(row["loss"]),
        )
        for row in kept
        if row["kind"] == "eval"
    )
    return {
        "epochs": int(start["epochs"]),
        "world_size": int(start["world_size"]),
        "device": str(start["device"]),
        "evaluations": evaluations,
        "times": times(rows),
        "test_top1": next((100 * quality(row) for row in reversed(kept) if row["kind"] == "test"), None),
        "world_sizes": tuple(int(row["world_size"]) for row in kept if row["kind"] in ("start", "resume")),
    }


def times(rows: Iterable[Row]) -> Times:
    """The times of a run from all its records, those that a resume made void too.

    Raises:
        KeyError, TypeError, ValueError: a record lacks its time.
    """
    rows = list(rows)
    kept = without_void(rows)
    training = max((float(row["train_seconds"]) for row in kept if "train_seconds" in row), default=0.0)
    return Times(counted_at(kept)(training), training, _wall(rows))


def counted_at(kept: Iterable[Row]) -> Callable[[float], float]:
    """Turns a reading of the training clock, at the end of an epoch, into seconds as the methodology counts them."""
    seconds = {row["epoch"]: float(row["seconds"]) for row in kept if row["kind"] == "epoch"}
    excess = seconds[1] - seconds[2] if 1 in seconds and 2 in seconds else 0.0
    return lambda train_seconds: train_seconds - excess


def _wall(rows: list[Row]) -> float:
    """Seconds from start or resume to the last record before the next, summed; work done twice counts twice."""
    total, began = 0.0, None
    for number, row in enumerate(rows):
        now = float(row["time"])
        if row["kind"] in ("start", "resume"):
            began = now
        last = number + 1 == len(rows) or rows[number + 1]["kind"] in ("start", "resume")
        if last and began is not None:
            total += max(0.0, now - began)
    return total
