"""Records as TensorBoard scalars."""

from __future__ import annotations

from pathlib import Path

from launcher.records.metrics import EvalRecord, Record, ResumeRecord, TrainRecord
from launcher.records.scalars import scalars


class TensorBoard:
    """Writes the numbers of training and evaluation records; a resume voids what was written of later steps."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._writer = self._open(None)

    def write(self, record: Record) -> None:
        if isinstance(record, ResumeRecord):
            self._writer.close()
            self._writer = self._open(record.step + 1)
        elif isinstance(record, TrainRecord | EvalRecord):
            for name, value in scalars(record).items():
                self._writer.add_scalar(name, value, record.step, walltime=record.time)

    def close(self) -> None:
        self._writer.close()

    def _open(self, purge_step: int | None):  # type: ignore[no-untyped-def]
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(self._folder), purge_step=purge_step)
