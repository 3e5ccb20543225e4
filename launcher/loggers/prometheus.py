"""The state of a run for Prometheus, as a text file in the run folder."""

from __future__ import annotations

import time
from typing import Literal

from pydantic.dataclasses import dataclass

from launcher.config.choices import LoggerConfig
from launcher.config.fields import STRICT
from launcher.config.schema import RunConfig
from launcher.files import atomic
from launcher.installation import check_installed
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
from launcher.records.run_folder import RunFolder

_SECONDS = 1.0  # between files
_STATES = ("training", "finished", "stopped")
_HELP = {
    "time_seconds": "Seconds since 1970 at the last record.",
    "step": "Completed optimizer steps.",
    "epoch": "Completed epochs.",
    "loss": "Mean training loss since the record before.",
    "samples_per_second": "Training throughput, in samples.",
    "evaluated_step": "Step of the last evaluation.",
    "evaluation_loss": "Loss of the last evaluation.",
    "checkpoint_step": "Step of the newest checkpoint.",
    "nonfinite_steps": "Steps with a non-finite loss or gradient since the start or resume.",
    "warnings": "Warnings of slow data since the start or resume.",
}


@dataclass(frozen=True, config=STRICT)
class Prometheus(LoggerConfig):
    """metrics.jsonl, and metrics.prom for Prometheus."""

    name: Literal["prometheus"]
    prometheus: bool

    def check(self) -> None:
        check_library()

    def sink(self, folder: RunFolder, config: RunConfig) -> PrometheusSink | None:
        return PrometheusSink(folder) if self.prometheus else None


def check_library() -> None:
    """Check that Prometheus' library is installed; raises UserError if not."""
    check_installed("prometheus", "prometheus_client", "prometheus-client")


class PrometheusSink:
    """Writes the file atomically, at most once a second; each number has the label `run`."""

    def __init__(self, folder: RunFolder):
        from prometheus_client import CollectorRegistry, Enum, Gauge

        self._folder = folder
        self._registry = CollectorRegistry()
        self._run = str(folder.path.absolute())
        named = {"labelnames": ["run"], "registry": self._registry}
        self._state = Enum("train_state", "What the run does.", states=_STATES, **named)
        self._numbers = {name: Gauge(f"train_{name}", text, **named) for name, text in _HELP.items()}
        names = {**named, "labelnames": ["run", "name"]}
        self._metrics = Gauge("train_metric", "Metrics of the last evaluation.", **names)
        self._written = -_SECONDS

    def write(self, record: Record) -> None:
        """Take the values of a record, and write the file if it is due."""
        self._take(record)
        if not isinstance(record, TrainRecord) or time.monotonic() - self._written >= _SECONDS:
            self._written = time.monotonic()
            self._write()

    def close(self) -> None:
        """Do nothing: the last record is written."""

    def _take(self, record: Record) -> None:
        self._set(time_seconds=record.time, step=record.step)
        match record:
            case StartRecord() | ResumeRecord():
                self._state.labels(self._run).state("training")
                self._set(nonfinite_steps=0, warnings=0)
            case TrainRecord():
                self._set(epoch=record.epoch, loss=record.loss, samples_per_second=record.samples_per_second)
            case EvalRecord():
                self._set(epoch=record.epoch, evaluated_step=record.step, evaluation_loss=record.loss)
                for name, value in record.metrics.items():
                    self._metrics.labels(self._run, name).set(_number(value))
            case NonFiniteRecord():
                self._numbers["nonfinite_steps"].labels(self._run).inc()
            case WarningRecord():
                self._numbers["warnings"].labels(self._run).inc()
            case EndRecord():
                self._state.labels(self._run).state("finished" if record.finished else "stopped")

    def _set(self, **numbers: float | None) -> None:
        for name, value in numbers.items():
            self._numbers[name].labels(self._run).set(_number(value))

    def _write(self) -> None:
        from prometheus_client import generate_latest

        if (checkpoint := self._folder.newest_step()) is not None:
            self._set(checkpoint_step=checkpoint)
        atomic.write_text(self._folder.prometheus, generate_latest(self._registry).decode())


def _number(value: float | None) -> float:
    return float("nan") if value is None else value
