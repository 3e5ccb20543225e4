"""Rank 0's records to metrics.jsonl and every other sink; the other ranks' go nowhere."""

from __future__ import annotations

from contextlib import suppress

from launcher.records.folder import RunFolder
from launcher.records.metrics import MetricsWriter, Record
from launcher.records.tensorboard import TensorBoard


class Recorder:
    """Hands each record to the sinks in turn, the append-only file first."""

    def __init__(self, folder: RunFolder, *, active: bool, tensorboard: bool):
        self._complained = False
        self._sinks: list[MetricsWriter | TensorBoard] = []
        if active:
            self._sinks.append(MetricsWriter(folder.metrics))
            if tensorboard:
                self._sinks.append(TensorBoard(folder.tensorboard))

    def record(self, record: Record) -> None:
        for sink in self._sinks:
            try:
                sink.write(record)
            except OSError as error:
                # note: a full disk costs records, not the run
                self._complain(error)

    def close(self) -> None:
        for sink in self._sinks:
            with suppress(OSError):
                sink.close()

    def _complain(self, error: OSError) -> None:
        if not self._complained:
            self._complained = True
            with suppress(OSError):
                print(f"warning: records cannot be written: {error.strerror}; training goes on", flush=True)
