"""`train report RUN -o mlperf.log`: a run's records in MLPerf Training's format.

Rules and keys: MLPerf Training 4.0, the last round with ResNet-50, in the open division, since the recipes' values
differ from those of the closed one. Lines have the form `:::MLLOG {...}` and milliseconds since 1970.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.config.resolved import read
from launcher.errors import UserError
from launcher.plan.plan import Plan, plan_for
from launcher.records.metrics import Row, reached
from launcher.records.run import quality, read_run
from launcher.records.run_folder import RunFolder
from launcher.schedules.polynomial import Polynomial

_POINT, _START, _STOP = "POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"


@dataclass(frozen=True)
class Event:
    """One log line; `time` in seconds since 1970."""

    time: float
    key: str
    value: Any = None
    kind: str = _POINT
    metadata: dict[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        values = {
            "namespace": "",
            "time_ms": int(1000 * self.time),
            "event_type": self.kind,
            "key": self.key,
            "value": self.value,
            "metadata": {"file": Path(__file__).name, "lineno": 0, **self.metadata},
        }
        return f":::MLLOG {json.dumps(values)}"


def log(folder: RunFolder) -> str:
    """Return the log of a run's records so far.

    Raises UserError if it has none, or is not of classification.
    """
    run = read_run(folder.path)
    if run.state in ("damaged", "unreadable"):
        raise UserError(f"{folder.path} is {run.state}: {run.problem}; restore the file")
    rows = run.rows
    if not rows or rows[0]["kind"] != "start":
        raise UserError(f"{folder.path} has no records yet; run the command again after the first step")
    config = read(folder.config)
    if config.task.primary.name != "top1":
        has = f"{folder.path} has task={config.task.name}, and MLPerf's log is of classification, with top-1"
        raise UserError(f"{has}; pass a run of task=classification")
    return as_text(plan_for(config, rows[0]["world_size"]), rows, folder.config.stat().st_mtime)


def as_text(plan: Plan, rows: Sequence[Row], started: float) -> str:
    """Return the log of records, of a run whose processes started at `started`."""
    return "".join(f"{event.line()}\n" for event in events(plan, rows, min(started, rows[0]["time"])))


def events(plan: Plan, rows: Sequence[Row], started: float) -> Iterator[Event]:
    """Yield the events of a run whose processes started at `started`, in order."""
    start = rows[0]["time"]
    yield Event(started, "cache_clear", True)
    yield Event(started, "init_start", kind=_START)
    for key, value in _facts(plan, f"{rows[0]['world_size']}x {rows[0]['device']}").items():
        yield Event(started, key, value)
    yield Event(start, "init_stop", kind=_STOP)
    yield Event(start, "run_start", kind=_START)
    yield from _training(plan, rows, start)
    end = rows[-1]
    if end["kind"] == "end" and end["finished"]:
        target = plan.config.target
        missed = target is not None and reached(rows, plan.config.task.goal(target)) is None
        yield Event(end["time"], "run_stop", kind=_STOP, metadata={"status": "aborted" if missed else "success"})


def _training(plan: Plan, rows: Sequence[Row], start: float) -> Iterator[Event]:
    """Yield epochs and evaluations; an epoch starts when the previous event ends."""
    last, opened = start, 0
    for row in rows:
        epoch = math.ceil(row["step"] / plan.steps_per_epoch)
        if row["kind"] not in ("epoch", "eval"):
            continue
        if opened < epoch:
            opened = epoch
            yield Event(last, "epoch_start", kind=_START, metadata={"epoch_num": epoch})
        if row["kind"] == "epoch":
            yield Event(row["time"], "epoch_stop", kind=_STOP, metadata={"epoch_num": epoch})
        else:
            at = {"epoch_num": row["epoch"]}
            yield Event(row["time"] - row["seconds"], "eval_start", kind=_START, metadata=at)
            yield Event(row["time"], "eval_accuracy", quality(row), metadata=at)
            yield Event(row["time"], "eval_stop", kind=_STOP, metadata=at)
        last = row["time"]


def _facts(plan: Plan, platform: str) -> dict[str, Any]:
    """Return the log's values; a submitting organisation replaces `submission_org`."""
    config = plan.config
    optimizer: Any = config.optimizer
    facts: dict[str, Any] = {
        "submission_benchmark": "resnet",
        "submission_division": "open",
        "submission_org": "none",
        "submission_platform": platform,
        "submission_status": "research",
        "seed": config.seed,
        "global_batch_size": plan.batch_size,
        "gradient_accumulation_steps": plan.accumulation,
        "train_samples": plan.train_samples,
        "eval_samples": config.dataset.val_samples,
        "model_bn_span": plan.rank_batch // plan.accumulation,
        "opt_learning_rate_warmup_epochs": plan.warmup_steps / plan.steps_per_epoch,
    }
    if (name := {"decoupled_sgd": "sgd"}.get(optimizer.name, optimizer.name)) not in ("sgd", "lars"):
        return {**facts, "opt_name": optimizer.name, "opt_base_learning_rate": plan.peak_lr}
    facts |= {
        "opt_name": name,
        f"{name}_opt_base_learning_rate": plan.peak_lr,
        f"{name}_opt_end_learning_rate": plan.lr(plan.total_steps - 1),
        f"{name}_opt_momentum": optimizer.momentum,
        f"{name}_opt_weight_decay": optimizer.weight_decay,
    }
    if name == "lars":
        facts["lars_epsilon"] = optimizer.epsilon
        facts["lars_opt_learning_rate_warmup_epochs"] = facts.pop("opt_learning_rate_warmup_epochs")
    if isinstance(config.schedule, Polynomial):
        facts[f"{name}_opt_learning_rate_decay_poly_power"] = config.schedule.power
        facts[f"{name}_opt_learning_rate_decay_steps"] = plan.total_steps - plan.warmup_steps
    return facts
