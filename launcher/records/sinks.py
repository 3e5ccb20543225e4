"""Rank 0's records to metrics.jsonl and every other sink; the other ranks have none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from launcher.config.schema import RunConfig
from launcher.records.folder import RunFolder
from launcher.records.metrics import EvalRecord, MetricsWriter, Record, ResumeRecord, TrainRecord, scalars

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class Sink(Protocol):
    """Takes records as they come; an OSError of a full disk is a warning."""

    def write(self, record: Record) -> None: ...

    def close(self) -> None: ...


class TensorBoardSink:
    """Writes the numbers of training and evaluation records; a resume voids what was written of later steps."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._writer: SummaryWriter | None = None
        self._purge_step: int | None = None

    def write(self, record: Record) -> None:
        if isinstance(record, ResumeRecord):
            self.close()
            self._writer, self._purge_step = None, record.step + 1
        elif isinstance(record, TrainRecord | EvalRecord):
            if self._writer is None:
                from torch.utils.tensorboard import SummaryWriter  # note: takes a second, which no first step waits for

                self._writer = SummaryWriter(str(self._folder), purge_step=self._purge_step)
            for name, value in scalars(record).items():
                self._writer.add_scalar(name, value, record.step, walltime=record.time)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class Recorder:
    """Hands each record to the sinks in turn."""

    def __init__(self, sinks: Sequence[Sink]):
        self._failed: Sequence[Sink] = []
        self._sinks = sinks

    def record(self, record: Record) -> None:
        """Write a record to every sink; prints a warning where one begins to fail."""
        failed = []
        for sink in self._sinks:
            try:
                sink.write(record)
            except OSError as error:
                failed.append(sink)
                if sink not in self._failed:
                    why = f"records cannot be written: {error.strerror}"
                    print(f"warning: {why}; training goes on, and they wait in memory", flush=True)
        self._failed = failed

    def close(self) -> None:
        for sink in self._sinks:
            try:
                sink.close()
            except OSError as error:
                print(f"warning: the last records are lost: {error.strerror}", flush=True)


def build_sinks(folder: RunFolder, config: RunConfig) -> list[Sink]:
    """The sinks of a run's first rank."""
    logger = config.logger
    sinks: list[Sink] = [MetricsWriter(folder.metrics)]
    if logger.tensorboard:
        sinks.append(TensorBoardSink(folder.tensorboard))
    if (sink := logger.sink(folder, config)) is not None:
        sinks.append(sink)
    return sinks
