"""A run's records for a study: evaluations, training time by the methodology, and wall-clock time."""

from dataclasses import dataclass
from typing import Any

from launcher.config.choices import declared
from launcher.config.tasks import TaskConfig
from launcher.records.metrics import Row, wall_seconds, without_void

TOP1 = "top-1 %"


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


NOTHING: dict[str, Any] = {"epochs": None, "world_size": None, "device": None, "evaluations": (), "times": None}


def quality(row: Row) -> float:
    """Return the primary (first) metric of an `eval` or `test` record.

    Raises KeyError, TypeError, ValueError or AttributeError if the record lacks it.
    """
    primary, *_ = row["metrics"].values()
    return float(primary)


def comparable(start: Row) -> tuple[str, float]:
    """Return the title of a run's primary metric, and a factor after which higher is better, and shares are percent."""
    metrics = {metric.name: metric for task in declared(TaskConfig) for metric in task.metrics}
    if (metric := metrics.get(str(start.get("primary")))) is None:
        return TOP1, 100.0
    is_lower = metric.better == "lower"
    title = "-" * is_lower + metric.title + " %" * metric.is_share
    return title, (100.0 if metric.is_share else 1.0) * (-1 if is_lower else 1)


def facts_of(rows: list[Row]) -> dict[str, Any]:
    """Return the fields of a RunSummary that the records hold.

    Raises KeyError, TypeError or ValueError if a record lacks a value, or has one of the wrong type.
    """
    valid = without_void(rows)
    start = next((row for row in valid if row["kind"] == "start"), None)
    if start is None:
        return NOTHING
    title, factor = comparable(start)
    evaluations = tuple(
        Evaluated(float(row["epoch"]), float(row["train_seconds"]) / 60, factor * quality(row))
        for row in valid
        if row["kind"] == "eval"
    )
    return {
        "epochs": int(start["epochs"]),
        "world_size": int(start["world_size"]),
        "device": str(start["device"]),
        "evaluations": evaluations,
        "metric": title,
        "times": Times(_counted(valid), wall_seconds(rows)),
        "ended_by": next((row.get("ended_by") for row in reversed(valid) if row["kind"] == "end"), None),
        "test_top1": next((factor * quality(row) for row in reversed(valid) if row["kind"] == "test"), None),
        "world_sizes": tuple(int(row["world_size"]) for row in valid if row["kind"] in ("start", "resume")),
    }


def _counted(valid: list[Row]) -> float:
    training = max((float(row["train_seconds"]) for row in valid if "train_seconds" in row), default=0.0)
    seconds = {row["epoch"]: float(row["seconds"]) for row in valid if row["kind"] == "epoch"}
    # note: a first epoch that takes less than the second has filled no caches; the run takes no longer than its clock
    return training - max(0.0, seconds[1] - seconds[2]) if 1 in seconds and 2 in seconds else training
