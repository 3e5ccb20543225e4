"""Rank 0's records to metrics.jsonl and every other sink; the other ranks have none."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from launcher.records.metrics import Record
from launcher.records.sinks import Sink


class Recorder:
    """Hands each record to the sinks in turn."""

    def __init__(self, sinks: Sequence[Sink]):
        self._complained = False
        self._sinks = sinks

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
