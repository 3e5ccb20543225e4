"""TensorBoard's files in the run folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic.dataclasses import dataclass

from launcher.config.choices import LoggerConfig
from launcher.config.fields import STRICT
from launcher.records.metrics import EvalRecord, Record, ResumeRecord, TrainRecord
from launcher.records.sinks import scalars

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


@dataclass(frozen=True, config=STRICT)
class TensorBoard(LoggerConfig):
    """metrics.jsonl and TensorBoard's files."""

    name: Literal["tensorboard"]


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
            waits = record.rank_wait_seconds if isinstance(record, TrainRecord) else None
            for rank, seconds in enumerate(waits or ()):
                name = f"{record.kind}/rank_wait_seconds/{rank}"
                self._writer.add_scalar(name, seconds, record.step, walltime=record.time)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
