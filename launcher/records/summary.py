"""Summarize a run in a table, with the errors of an earlier estimate."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from launcher.config.resolved import digest
from launcher.config.schema import RunConfig
from launcher.config.tasks import TaskConfig
from launcher.console import facts
from launcher.counts import count_of
from launcher.files import atomic
from launcher.records.metrics import Row, reached, read_metrics
from launcher.records.progress import duration
from launcher.records.run_folder import RunFolder

_ESTIMATES = ".estimates"


def summary_table(folder: RunFolder, config: RunConfig) -> Table:
    """Return a table of the results, the run folder, its curve and its page; rows without a value are omitted."""
    drawn = (("learning curve", folder.curve), ("page", folder.page))
    files = [(name, str(file)) for name, file in drawn if file.exists()]
    return facts([*results(folder, config), ("run folder", str(folder.path)), *files])


def results(folder: RunFolder, config: RunConfig) -> list[tuple[str, str]]:
    """Return epochs, metrics, times and throughput, each with its name; rows without a value are omitted."""
    rows = read_metrics(folder.metrics)
    return [
        *_metrics(config.task, rows),
        *_target(config, rows),
        *_stopped_early(config, rows),
        *_speed(config.task, rows),
        *last_warnings(rows),
        *_estimated(config, rows),
        *_gaps(rows),
    ]


def _metrics(task: TaskConfig, rows: list[Row]) -> list[tuple[str, str]]:
    evaluations = [row for row in rows if row["kind"] == "eval"]
    if not evaluations:
        return []
    primary, last = task.primary, evaluations[-1]
    values = [row["metrics"].get(primary.name) for row in evaluations]
    at, best = "", primary.best(values)
    if best is not None:
        at = f" (best {primary.text(best)} at epoch {evaluations[values.index(best)]['epoch']:g})"
    tests = [row for row in rows if row["kind"] == "test"]
    return [
        ("epochs", f"{last['epoch']:g}"),
        (primary.title, f"{primary.text(values[-1])}{at}"),
        *((metric.title, metric.text(last["metrics"].get(metric.name))) for metric in task.metrics[1:]),
        *((f"{primary.title}, test images", primary.text(row["metrics"].get(primary.name))) for row in tests[-1:]),
    ]


def _target(config: RunConfig, rows: list[Row]) -> list[tuple[str, str]]:
    if config.target is None:
        return []
    at, first = "not reached", reached(rows, config.task.goal(config.target))
    if first is not None:
        at = f"reached at epoch {first['epoch']:g}, after {duration(first['train_seconds'])} of training"
    return [(f"target {config.target}", at)]


def _stopped_early(config: RunConfig, rows: list[Row]) -> list[tuple[str, str]]:
    patience, ends = config.task.patience(config.stop), [row for row in rows if row["kind"] == "end"]
    ended_by = ends[-1].get("ended_by") if ends else None
    if patience is not None and ended_by == "stop.patience":
        least = f" of more than {patience.min_delta:g}" if patience.min_delta > 0 else ""
        evaluations = count_of(patience.evaluations, "evaluation")
        why = f"{evaluations} in a row without a gain{least} in {patience.metric.title}"
    elif ended_by == "stop.minutes":
        why = f"stop.minutes={config.stop.minutes:g}; slower than measured at the start, so the schedule did not end"
    else:
        return []
    length = next((f" of {row['epochs']}" for row in rows if row["kind"] == "start"), "")
    epoch = next((row["epoch"] for row in reversed(rows) if row["kind"] == "eval"), 0)
    return [("stopped early", f"at epoch {epoch:g}{length}: {why}")]


def _speed(task: TaskConfig, rows: list[Row]) -> list[tuple[str, str]]:
    cells = []
    ends = [row for row in rows if row["kind"] == "end"]
    if ends:
        cells.append(("training time", duration(ends[-1]["train_seconds"])))
        rest = f"{duration(ends[-1]['eval_seconds'])}, {duration(ends[-1]['save_seconds'])}"
        cells.append(("evaluation, saving", rest))
    training = [row for row in rows if row["kind"] == "train"]
    if training:
        seconds = sum(row["step_seconds"] for row in training)
        waited = sum(row["data_wait_seconds"] for row in training)
        rates = [row["samples_per_second"] for row in training if row["samples_per_second"] > 0]
        if rates and seconds > 0:
            mean = len(rates) / sum(1 / rate for rate in rates)
            cells.append(
                (task.speeds[1], f"{task.speed(mean):,.0f} ({waited / seconds:.0%} of the time waiting for data)")
            )
    return cells


def last_warnings(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Return the title and the text of the last warning of each title."""
    last = {row["title"]: row for row in rows if row["kind"] == "warning"}
    return [(title, f"{row['text']} (step {row['step']:,})") for title, row in last.items()]


def _gaps(rows: list[Row]) -> list[tuple[str, str]]:
    """Return the number of records that a full disk lost, and whether the last ones are missing."""
    lost = sum(row["records"] for row in rows if row["kind"] == "lost")
    gaps = [f"{lost:,} in the middle"] if lost else []
    if rows and not any(row["kind"] == "end" for row in rows):
        gaps.append("the last ones")
    reason = "the disk was full" + ("" if lost else ", or the run was killed, or stopped between two attempts")
    return [("records lost", f"{' and '.join(gaps)}: {reason}")] if gaps else []


def save_estimate(config: RunConfig, estimate: dict[str, Any]) -> Path:
    """Write an estimate for the summary of a run of this config, and return its path."""
    path = _estimate_file(config)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_text(path, json.dumps(estimate, indent=2) + "\n")
    return path


def saved_estimates(runs: Path) -> list[Path]:
    """Return the files of all estimates in a folder of runs."""
    return sorted((runs / _ESTIMATES).glob("*.json"))


def _estimate_file(config: RunConfig) -> Path:
    return Path(config.runs) / _ESTIMATES / f"{digest(config)[:16]}.json"


def _estimated(config: RunConfig, rows: list[Row]) -> list[tuple[str, str]]:
    """Return the estimated seconds of a finished run and their relative errors, by clock."""
    ends = [row for row in rows if row["kind"] == "end" and row["finished"]]
    parts = []
    try:
        estimate = json.loads(_estimate_file(config).read_bytes()) if ends else {}
        for clock, key in (("training", "train"), ("evaluation", "eval"), ("saving", "save")):
            seconds, actual = float(estimate[clock]["seconds"]), ends[-1][f"{key}_seconds"]
            parts.append(f"{clock} {duration(seconds)} ({seconds / actual - 1 if actual else 0.0:+.1%})")
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [("estimated", ", ".join(parts))]
