"""Write the records of rank 0 to metrics.jsonl and all other sinks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from launcher.config.schema import RunConfig
from launcher.records.metrics import EvalRecord, MetricsWriter, Record, ResumeRecord, TrainRecord, scalars
from launcher.records.run_folder import RunFolder

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class Sink(Protocol):
    """A destination of records; an OSError, as of a full disk, is a warning."""

    def write(self, record: Record) -> None: ...

    def close(self) -> None: ...


class TensorBoardSink:
    """Write the numbers of training and evaluation records; a resume voids those of later steps."""

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
                from torch.utils.tensorboard import SummaryWriter  # note: takes a second, so after the first step

                self._writer = SummaryWriter(str(self._folder), purge_step=self._purge_step)
            for name, value in scalars(record).items():
                self._writer.add_scalar(name, value, record.step, walltime=record.time)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class Recorder:
    """Write each record to all sinks."""

    def __init__(self, sinks: Sequence[Sink]):
        self._failed: Sequence[Sink] = []
        self._sinks = sinks

    def record(self, record: Record) -> None:
        """Write a record to every sink; print a warning when a sink starts to fail."""
        failed = []
        for sink in self._sinks:
            try:
                sink.write(record)
            except OSError as error:
                failed.append(sink)
                if sink not in self._failed:
                    reason = f"records cannot be written ({error.strerror})"
                    print(f"warning: {reason}; check the disk: training continues and keeps them in memory", flush=True)
        self._failed = failed

    def close(self) -> None:
        for sink in self._sinks:
            try:
                sink.close()
            except OSError as error:
                print(f"warning: the last records are lost ({error.strerror})", flush=True)


def build_sinks(folder: RunFolder, config: RunConfig) -> list[Sink]:
    """Build the sinks of rank 0."""
    logger = config.logger
    sinks: list[Sink] = [MetricsWriter(folder.metrics)]
    if logger.tensorboard:
        sinks.append(TensorBoardSink(folder.tensorboard))
    if (sink := logger.sink(folder, config)) is not None:
        sinks.append(sink)
    return sinks
