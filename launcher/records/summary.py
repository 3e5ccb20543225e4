"""What came out of a run, as a table."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from launcher.config.resolved import read
from launcher.errors import one_line
from launcher.records.folder import RunFolder
from launcher.records.metrics import Row, reached, read_metrics
from launcher.records.prediction import deviations
from launcher.records.progress import duration


def summary_table(folder: RunFolder) -> Table:
    """Epochs, accuracies, times, speed, and where the run lies; what is not known yet is left out."""
    rows = read_metrics(folder.metrics)
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in [
        *_accuracy(rows),
        *_target(folder, rows),
        *_speed(rows),
        *_estimated(folder),
        ("run folder", str(folder.path)),
    ]:
        table.add_row(f"[bold]{name}[/]", escape(one_line(value)))
    if folder.curve.exists():
        table.add_row("[bold]learning curve[/]", escape(one_line(str(folder.curve))))
    return table


def _accuracy(rows: list[Row]) -> list[tuple[str, str]]:
    evaluations = [row for row in rows if row["kind"] == "eval"]
    if not evaluations:
        return []
    tests = [("top-1, test pictures", f"{row['top1']:.2%}") for row in rows if row["kind"] == "test"]
    last, best = evaluations[-1], max(evaluations, key=lambda row: float(row["top1"]))
    return [
        ("epochs", f"{last['epoch']:g}"),
        ("top-1", f"{last['top1']:.2%} (best {best['top1']:.2%} at epoch {best['epoch']:g})"),
        ("top-5", f"{last['top5']:.2%}"),
        *tests[-1:],
    ]


def _target(folder: RunFolder, rows: list[Row]) -> list[tuple[str, str]]:
    target = read(folder.config).target if folder.config.is_file() else None
    if target is None:
        return []
    found = reached(rows, target)
    at = f"reached at epoch {found.epoch:g}, after {duration(found.seconds)} of training" if found else "not reached"
    return [(f"target {target}", at)]


def _speed(rows: list[Row]) -> list[tuple[str, str]]:
    facts = []
    ends = [row for row in rows if row["kind"] == "end"]
    if ends:
        facts.append(("training time", duration(ends[-1]["train_seconds"])))
        rest = f"{duration(ends[-1]['eval_seconds'])}, {duration(ends[-1]['save_seconds'])}"
        facts.append(("evaluation, saving", rest))
    training = [row for row in rows if row["kind"] == "train"]
    if training:
        seconds = sum(row["step_seconds"] for row in training)
        waited = sum(row["data_wait_seconds"] for row in training)
        rates = [row["images_per_second"] for row in training if row["images_per_second"] > 0]
        if rates and seconds > 0:
            mean = len(rates) / sum(1 / rate for rate in rates)
            facts.append(("images/s", f"{mean:,.0f} ({waited / seconds:.0%} of the time waiting for data)"))
    return facts


def _estimated(folder: RunFolder) -> list[tuple[str, str]]:
    """What `train estimate` said before, and how far off it was."""
    found = [f"{d.clock} {duration(d.estimated)} ({d.error:+.1%})" for d in deviations(folder)]
    return [("estimated", ", ".join(found))] if found else []
