"""The numbers of records, under the names that every sink shows them by."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.records.metrics import Record, Row


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
    if ends:
        found |= {f"end/{clock}": ends[-1][clock] for clock in ("train_seconds", "eval_seconds", "save_seconds")}
    return found
