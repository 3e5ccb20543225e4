"""Records to a logger in a thread, so that a logger that fails or is slow neither ends nor slows the run."""

import threading
from contextlib import suppress
from queue import Full, Queue

from launcher.errors import one_line
from launcher.records.metrics import Record
from launcher.records.sinks import Sink

# Records that wait for a slow logger; metrics.jsonl has those that are dropped.
_MOST_WAITING = 10_000
# Seconds that a run waits at its end; a stop request allows 30 s in total.
_CLOSE_SECONDS = 15.0
_LONGEST_REASON = 300


class BackgroundSink:
    """Write records to a sink in a daemon thread; print one warning when it fails or cannot keep up."""

    def __init__(self, name: str, sink: Sink, most: int = _MOST_WAITING, close_seconds: float = _CLOSE_SECONDS):
        self._name, self._sink, self._close_seconds = name, sink, close_seconds
        self._queue: Queue[Record | None] = Queue(most)
        self._warned = self._ended = False
        # note: a daemon thread, because a call that never returns must not block the exit
        self._thread = threading.Thread(target=self._write_all, name=f"records-to-{name}", daemon=True)
        self._thread.start()

    def write(self, record: Record) -> None:
        try:
            self._queue.put_nowait(record)
        except Full:
            self._warn("is too slow, and some records are dropped")

    def close(self) -> None:
        with suppress(Full):
            self._queue.put(None, timeout=self._close_seconds)
        self._thread.join(self._close_seconds)
        if not self._ended:
            self._warn("did not write all records in time")

    def _write_all(self) -> None:
        while (record := self._queue.get()) is not None:
            try:
                self._sink.write(record)
            # note: a library, or a logger of the user's, may raise anything
            except Exception as error:
                self._warn(f"failed ({str(error) or type(error).__name__})")
        try:
            self._sink.close()
        except Exception as error:
            self._warn(f"failed at its end ({str(error) or type(error).__name__})")
        self._ended = True

    def _warn(self, reason: str) -> None:
        if self._warned:
            return
        self._warned = True
        with suppress(OSError):
            reason = one_line(reason[:_LONGEST_REASON])
            print(f"warning: {self._name} {reason}; training continues, and metrics.jsonl has all records", flush=True)
