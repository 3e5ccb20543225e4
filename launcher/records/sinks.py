"""Write the records of rank 0 to metrics.jsonl and attempts.jsonl, and to all other sinks."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from launcher.files.disk import reason
from launcher.records.metrics import LostRecord, Record, ResumeRecord, StartRecord, read_last_lines

_MOST_BUFFERED = 2**24  # bytes; about 50,000 records


class Sink(Protocol):
    """A destination of records; an OSError, as of a full disk, is a warning."""

    def write(self, record: Record) -> None: ...

    def close(self) -> None: ...


class MetricsWriter:
    """Append records; while the disk is full, buffer them in memory."""

    def __init__(self, path: Path):
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        # note: a line truncated by an earlier kill must not merge with the next one
        truncated = read_last_lines(path, 1)[-1:] != [b""]
        self._buffer = bytearray(b"\n" if truncated else b"")
        self._lost = 0

    def write(self, record: Record) -> None:
        """Write the buffered records and this one.

        Raises OSError if the disk is full; the records stay in the buffer.
        """
        line = json.dumps(record.row(), allow_nan=False).encode() + b"\n"
        if len(self._buffer) + len(line) > _MOST_BUFFERED:
            self._lost += 1
        else:
            self._buffer += line
        self._flush()
        if self._lost:
            lost, self._lost = self._lost, 0
            self.write(LostRecord(record.step, record.time, lost))

    def close(self) -> None:
        """Write the buffered records; raise OSError if the disk is full, and drop them."""
        try:
            self._flush()
        finally:
            os.close(self._file)

    def _flush(self) -> None:
        while self._buffer:
            # note: a disk that becomes full may take a part of a line; the next write starts with the rest
            del self._buffer[: os.write(self._file, self._buffer)]


class AttemptsWriter(MetricsWriter):
    """Append the records of starts and resumes alone, so that a resume reads no others."""

    def write(self, record: Record) -> None:
        if isinstance(record, StartRecord | ResumeRecord):
            super().write(record)


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
                    problem = f"records cannot be written ({error.strerror})"
                    remedy = reason(error).partition("; ")[2] or "check the disk"
                    print(f"warning: {problem}; {remedy}: training continues and keeps them in memory", flush=True)
        self._failed = failed

    def close(self) -> None:
        for sink in self._sinks:
            try:
                sink.close()
            except OSError as error:
                print(f"warning: the last records are lost ({error.strerror})", flush=True)


def scalars(record: Record) -> dict[str, float]:
    """Return the finite numbers of a record by KIND/FIELD, such as `train/loss`, without step and time."""
    row = record.row()
    values = {**row, **row.get("metrics", {})}
    return {
        f"{record.kind}/{name}": value
        for name, value in values.items()
        if type(value) in (int, float) and name not in ("step", "time")
    }
