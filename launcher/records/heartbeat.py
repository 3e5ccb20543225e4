"""A small file with the state of a run, for monitoring: JSON, or Prometheus' textfile format; made of its records."""

import json
import time
from pathlib import Path
from typing import Any

from launcher import atomic
from launcher.disk import reason
from launcher.records.metrics import (
    EndRecord,
    EvalRecord,
    NonFiniteRecord,
    Record,
    ResumeRecord,
    StartRecord,
    TrainRecord,
    WarningRecord,
)
from launcher.records.run_folder import RunFolder, checkpoint_name

PROMETHEUS = ".prom"
_SECONDS = 1.0  # between files
_HELP = {
    "time": "Seconds since 1970 at the last record.",
    "step": "Completed optimizer steps.",
    "total_steps": "Optimizer steps of the whole run.",
    "epoch": "Completed epochs.",
    "loss": "Mean training loss since the record before.",
    "samples_per_second": "Training throughput, in samples.",
    "seconds_left": "Predicted seconds to the end of the run.",
    "checkpoint_step": "Step of the newest checkpoint.",
    "nonfinite_steps": "Steps with a non-finite loss or gradient since the start or resume.",
    "warnings": "Warnings of slow data since the start or resume.",
    "healthy": "1 if the last steps were finite, else 0.",
    "running": "1 while the run trains, 0 after its end.",
}


class HeartbeatSink:
    """Writes the file atomically, at most once a second; a failed write is a warning, once until one succeeds."""

    def __init__(self, path: Path, folder: RunFolder, total_steps: int, epochs: int):
        self._path, self._folder = path, RunFolder(folder.path.absolute())
        self._values: dict[str, Any] = {"run": str(self._folder.path), "state": "starting", "health": "ok"}
        self._values |= {"total_steps": total_steps, "epochs": epochs, "nonfinite_steps": 0, "metrics": {}}
        self._values |= {"warnings": 0, "warning": None}
        self._evaluation_seconds = 0.0
        self._written, self._has_failed = -_SECONDS, False

    def write(self, record: Record) -> None:
        """Take the values of a record, and write the file if it is due."""
        self._values |= {"time": record.time, "step": record.step, **self._of(record)}
        if isinstance(record, TrainRecord) and time.monotonic() - self._written < _SECONDS:
            return
        self._written = time.monotonic()
        checkpoint = self._folder.newest_step()
        self._values["checkpoint_step"] = checkpoint
        name = checkpoint_name(checkpoint) if checkpoint is not None else None
        self._values["checkpoint"] = str(self._folder.checkpoints / name) if name else None
        try:
            atomic.write_text(self._path, self._text())
            self._has_failed = False
        except OSError as error:
            if not self._has_failed:
                problem = f"heartbeat={self._path} cannot be written: {reason(error, 'set another file')}"
                print(f"warning: {problem}; training continues", flush=True)
            self._has_failed = True

    def close(self) -> None:
        """Do nothing: the last record is written."""

    def _of(self, record: Record) -> dict[str, Any]:
        """Return the values that a record changes."""
        match record:
            case StartRecord() | ResumeRecord():
                return {"state": "training", "nonfinite_steps": 0, "health": "ok", "warnings": 0, "warning": None}
            case TrainRecord():
                spent = record.train_seconds + self._evaluation_seconds
                left = (self._values["total_steps"] - record.step) * spent / max(1, record.step)
                row = record.row()
                health = "ok" if row["loss"] is not None else "the loss is not finite"
                names = ("epoch", "loss", "samples_per_second")
                return {**{name: row[name] for name in names}, "seconds_left": left, "health": health}
            case EvalRecord():
                self._evaluation_seconds += record.seconds
                return {"epoch": record.epoch, "metrics": record.row()["metrics"], "evaluated_step": record.step}
            case NonFiniteRecord():
                steps = self._values["nonfinite_steps"] + 1
                return {"nonfinite_steps": steps, "health": f"loss or gradients of step {record.step} are not finite"}
            case WarningRecord():
                return {"warnings": self._values["warnings"] + 1, "warning": record.text}
            case EndRecord():
                return {"state": "finished" if record.finished else "stopped", "seconds_left": 0.0}
        return {}

    def _text(self) -> str:
        return (
            prometheus(self._values) if self._path.suffix == PROMETHEUS else json.dumps(self._values, indent=1) + "\n"
        )


def prometheus(values: dict[str, Any]) -> str:
    """Return the numbers in Prometheus' text format, each with the label `run`; unknown ones are left out."""
    numbers = {**values, "healthy": int(values["health"] == "ok"), "running": int(values["state"] == "training")}
    run = _label(values["run"])
    lines = []
    for name, text in _HELP.items():
        if numbers.get(name) is not None:
            lines += [f"# HELP train_{name} {text}", f"# TYPE train_{name} gauge"]
            lines.append(f'train_{name}{{run="{run}"}} {float(numbers[name])!r}')
    if metrics := {name: value for name, value in values["metrics"].items() if value is not None}:
        lines += ["# HELP train_metric Metrics of the last evaluation.", "# TYPE train_metric gauge"]
        lines += [f'train_metric{{run="{run}",name="{_label(name)}"}} {float(one)!r}' for name, one in metrics.items()]
    return "\n".join(lines) + "\n"


def _label(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
