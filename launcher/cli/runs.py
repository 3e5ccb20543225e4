"""The runs in a folder, as far as their folders show: quick for hundreds of them, and one line for a broken one."""

import shlex
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rich.table import Table

from launcher.config.goals import Metric
from launcher.config.groups import is_named
from launcher.config.options import Unread
from launcher.config.resolved import read
from launcher.config.schema import RunConfig
from launcher.console import table, verbatim
from launcher.errors import MachineError, Problem, UserError, one_line
from launcher.plan.epochs import dilated_epochs
from launcher.records.metrics import Row, is_whole, read_rows, without_void
from launcher.records.progress import duration, wall_seconds
from launcher.records.run_folder import RunFolder, run_folders

State = Literal["running", "finished", "stopped", "failed", "interrupted", "damaged"]
_SILENT_SECONDS = 600.0


@dataclass(frozen=True)
class ListedRun:
    """One run. `best` is that of `metric`, `epochs` after dilation; `problem`: why it failed.

    minutes: from the start or resume to the newest record of each attempt. cost: their price, for the machine's price.
    """

    path: str
    state: State
    metric: str | None = None
    best: float | None = None
    best_text: str | None = None
    epochs_done: float = 0.0
    epochs: int | None = None
    minutes: float = 0.0
    cost: float | None = None
    currency: str | None = None
    problem: str | None = None
    resume: str | None = None


def list_runs(folder: Path, metric: str | None = None) -> list[ListedRun]:
    """Return the runs at or below a folder, the last written one last; `best` is that of a metric, or of each run's.

    Raises UserError if there are runs, but none has the metric.
    """
    runs = [_read(run, metric) for run in run_folders(folder)]
    if metric is not None and runs and all(run.metric is None for run in runs):
        message = "no run has it; `train ls metrics` lists those of each task"
        raise UserError(Problem(message, "--metric", metric))
    return runs


def runs_table(folder: Path, runs: list[ListedRun]) -> Table:
    """Return a table of the runs in a folder, with the line to type for each that has not finished."""
    numbers = ("epochs", "time", "cost")
    cells = table("run", "state", "best", *numbers, "to resume, or what is wrong", numbers=numbers)
    for run in runs:
        cells.add_row(
            verbatim(Path(run.path).relative_to(folder)),
            run.state,
            verbatim(f"{run.metric} {run.best_text}" if run.best_text else "-"),
            f"{run.epochs_done:.4g}/{run.epochs}" if run.epochs else "-",
            duration(60 * run.minutes),
            "-" if run.cost is None else f"{run.cost:,.2f} {run.currency}",
            verbatim("; ".join(filter(None, (run.problem, run.resume))) or "-"),
        )
    return cells


def listed(folder: RunFolder) -> dict[str, Any]:
    """Return a run as plain values."""
    return asdict(_read(folder))


def _read(folder: RunFolder, metric: str | None = None) -> ListedRun:
    name = str(folder.path)
    try:
        config = read(folder.config, imports=False)
        rows = list(filter(is_whole, read_rows(folder.metrics, outline=True)))
    except (UserError, MachineError, OSError) as error:
        problem = error.line if isinstance(error, UserError) else one_line(str(error))
        return ListedRun(name, "damaged", problem=problem)
    valid = without_void(rows)
    state, reason = _state(folder, valid), folder.failure_reason()
    facts = {
        **_results(config, valid, metric),
        **_cost(config, valid, wall_seconds(rows)),
        "resume": None if state in ("running", "finished") else f"train resume {shlex.quote(one_line(name))}",
    }
    return ListedRun(name, state, problem=reason if state == "failed" else None, **facts)


def _state(folder: RunFolder, valid: list[Row]) -> State:
    end = next((row for row in reversed(valid) if row["kind"] == "end"), None)
    if folder.is_locked():
        return "running"
    if end is not None:
        return "finished" if end["finished"] else "stopped"
    if folder.failure_reason() is not None:
        return "failed"
    # note: the kernel lists only the locks of this machine
    is_recent = bool(valid) and time.time() - valid[-1]["time"] < _SILENT_SECONDS
    return "running" if is_recent and folder.hosts() - {socket.gethostname()} else "interrupted"


def _results(config: RunConfig, valid: list[Row], name: str | None) -> dict[str, Any]:
    metric = next((one for one in _metrics(config, valid) if name in (None, one.name)), None)
    values = [row["metrics"] for row in valid if row["kind"] == "eval"]
    best = None if metric is None else metric.best(row.get(metric.name) for row in values)
    return {
        "metric": None if metric is None else metric.title,
        "best": best,
        "best_text": None if metric is None or best is None else metric.text(best),
        "epochs_done": float(max((row["epoch"] for row in valid if "epoch" in row), default=0)),
        "epochs": dilated_epochs(config.epochs, config.schedule.dilate),
    }


def _metrics(config: RunConfig, valid: list[Row]) -> Sequence[Metric]:
    """Return the metrics; of a task of the user's, whose code is not imported, the primary one of the records."""
    if not isinstance(config.task, Unread):
        return config.task.metrics
    start = next((row for row in valid if row["kind"] == "start"), {})
    name = str(start.get("primary", config.task.name))
    return [Metric(name, name, "lower" if start.get("better") == "lower" else "higher", is_share=False)]


def _cost(config: RunConfig, valid: list[Row], seconds: float) -> dict[str, Any]:
    """Return the minutes and, if the run had the devices of the config's machine, their price."""
    machine, nodes = config.hardware, config.launch.nnodes
    start = next((row for row in reversed(valid) if row["kind"] in ("start", "resume")), None)
    device = next((row["device"] for row in valid if row["kind"] == "start"), "")
    # note: recipes set the machine of their published results, not the one they run on
    is_whole_machine = machine.gpus is None or (start is not None and machine.gpus * nodes == start["world_size"])
    cost = None
    is_same_gpu = machine.gpu is None or is_named(machine.gpu, device)
    if machine.price_per_hour is not None and is_whole_machine and is_same_gpu:
        cost = machine.price_per_hour * nodes * seconds / 3600
    return {"minutes": seconds / 60, "cost": cost, "currency": None if cost is None else machine.currency}
