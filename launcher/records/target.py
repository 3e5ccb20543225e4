"""Time to target: when a run's evaluations first reached the accuracy it was to stop at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from launcher.config.targets import target_accuracy
from launcher.records.metrics import Row


@dataclass(frozen=True)
class Reached:
    """The first evaluation at the target; `seconds` on the training clock, evaluation and saves apart."""

    top1: float
    epoch: float
    step: int
    seconds: float


def reached(rows: Sequence[Row], target: str) -> Reached | None:
    """The first evaluation at the target, or None if there is none yet."""
    wanted = target_accuracy(target)
    for row in rows:
        if row["kind"] == "eval" and row["top1"] >= wanted:
            return Reached(row["top1"], row["epoch"], row["step"], row["train_seconds"])
    return None
