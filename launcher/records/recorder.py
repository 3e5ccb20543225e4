"""Rank 0's records to metrics.jsonl and every other sink; the other ranks' go nowhere."""

from __future__ import annotations

from launcher.records.folder import RunFolder
from launcher.records.metrics import MetricsWriter, Record
from launcher.records.tensorboard import TensorBoard


class Recorder:
    """Hands each record to the sinks in turn, the append-only file first."""

    def __init__(self, folder: RunFolder, *, active: bool, tensorboard: bool):
        self._sinks: list[MetricsWriter | TensorBoard] = []
        if active:
            self._sinks.append(MetricsWriter(folder.metrics))
            if tensorboard:
                self._sinks.append(TensorBoard(folder.tensorboard))

    def record(self, record: Record) -> None:
        for sink in self._sinks:
            sink.write(record)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
