"""The runs in a folder as rows: for `train ls runs`, for programs, and at the end of a run."""

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from launcher.console import table, verbatim
from launcher.errors import Problem, UserError, one_line
from launcher.records.progress import duration
from launcher.records.run import RunSummary, State, read_run
from launcher.records.run_folder import RunFolder, run_folders


@dataclass(frozen=True)
class ListedRun:
    """One run. `best` is that of `metric`, `epochs` after dilation; `problem`: why it failed, or what is damaged.

    train_minutes and train_cost: of training, as `train compare` has them. wall_minutes and wall_cost: of all attempts,
    from the start or resume to the newest record. The costs are for the machine's price.
    """

    path: str
    state: State
    metric: str | None
    best: float | None
    best_text: str | None
    epochs_done: float
    epochs: int | None
    train_minutes: float
    train_cost: float | None
    wall_minutes: float
    wall_cost: float | None
    currency: str | None
    problem: str | None
    resume: str | None


def list_runs(folder: Path, metric: str | None = None) -> list[ListedRun]:
    """Return the runs at or below a folder, the last written one last; `best` is that of a metric, or of each run's.

    Raises UserError if there are runs, but none has the metric.
    """
    runs = [read_run(run.path, metric) for run in run_folders(folder)]
    if metric is not None and runs and not any(run.evaluations for run in runs):
        message = "no run has it; `train ls metrics` lists those of each task"
        raise UserError(Problem(message, "--metric", metric))
    return list(map(_row, runs))


def runs_table(folder: Path, runs: list[ListedRun]) -> Table:
    """Return a table of the runs in a folder, with the line to type for each that has not finished."""
    numbers = ("epochs", "wall clock", "wall-clock cost")
    cells = table("run", "state", "best", *numbers, "to resume, or what is wrong", numbers=numbers)
    for run in runs:
        cells.add_row(
            verbatim(Path(run.path).relative_to(folder)),
            run.state,
            verbatim(f"{run.metric} {run.best_text}" if run.best_text else "-"),
            f"{run.epochs_done:.4g}/{run.epochs}" if run.epochs else "-",
            duration(60 * run.wall_minutes),
            "-" if run.wall_cost is None else f"{run.wall_cost:,.2f} {run.currency}",
            verbatim("; ".join(filter(None, (run.problem, run.resume))) or "-"),
        )
    return cells


def listed(folder: RunFolder) -> dict[str, Any]:
    """Return a run as plain values."""
    return asdict(_row(read_run(folder.path)))


def _row(run: RunSummary) -> ListedRun:
    best, name = run.best, one_line(str(run.path))
    can_resume = run.state in ("stopped", "failed", "interrupted")
    return ListedRun(
        path=str(run.path),
        state=run.state,
        metric=run.metric.title if best else None,
        best=best.value if best else None,
        best_text=run.metric.value_text(best.value) if best else None,
        epochs_done=run.epochs_done,
        epochs=run.length,
        train_minutes=run.times.training / 60 if run.times else 0.0,
        train_cost=run.money("training"),
        wall_minutes=run.times.wall / 60 if run.times else 0.0,
        wall_cost=run.money("wall"),
        currency=None if run.money("wall") is None else run.currency,
        problem=run.problem,
        resume=f"train resume {shlex.quote(name)}" if can_resume else None,
    )
