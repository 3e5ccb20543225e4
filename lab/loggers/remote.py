"""Records on their way to a tracking server, in a thread of their own: training waits for no server."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Literal, Protocol

from launcher import atomic
from launcher.config.schema import RunConfig
from launcher.errors import one_line
from launcher.records.folder import RunFolder
from launcher.records.metrics import EndRecord, Record

Outcome = Literal["finished", "stopped", "failed"]

# Seconds that the end of a run waits for what is not sent yet; after a request to stop there are 30 in all.
CLOSE_SECONDS = 15.0
# After an error the other ranks wait to be told of it.
FAILED_SECONDS = 3.0


class Tracker(Protocol):
    """A run as a tracking library keeps it; any call may raise, and may take its time."""

    def open(self) -> str | None:
        """Begin the run, or go on with it; called again where it raised. Returns what the user should be told."""

    def send(self, records: Sequence[Record]) -> None: ...

    def finish(self, outcome: Outcome) -> None: ...


class RemoteSink:
    """Hands records to a tracker; those that it does not take are tried again with the next, the failure told once."""

    def __init__(self, name: str, tracker: Tracker, close_seconds: float = CLOSE_SECONDS):
        self._name, self._tracker, self._close_seconds = name, tracker, close_seconds
        self._queue: SimpleQueue[Record | None] = SimpleQueue()
        self._outcome: Outcome = "failed"
        self._opened = self._warned = self._sent_all = False
        # note: a daemon, because a call that never answers must not keep the process
        self._thread = threading.Thread(target=self._work, name=f"records-to-{name}", daemon=True)
        self._thread.start()

    def write(self, record: Record) -> None:
        if isinstance(record, EndRecord):
            self._outcome = "finished" if record.finished else "stopped"
        self._queue.put(record)

    def close(self) -> None:
        self._queue.put(None)
        failed = self._outcome == "failed"
        self._thread.join(min(FAILED_SECONDS, self._close_seconds) if failed else self._close_seconds)
        if not self._sent_all:
            self._warn("some records were not sent; metrics.jsonl has all of them")

    def _work(self) -> None:
        pending: list[Record] = []
        ending = False
        while not ending:
            waiting = self._waiting()
            ending = None in waiting
            pending += [record for record in waiting if record is not None]
            try:
                if not self._opened:
                    warning = self._tracker.open()
                    self._opened = True
                    if warning:
                        self._warn(warning)
                self._tracker.send(pending)
                pending.clear()
                if ending:
                    self._tracker.finish(self._outcome)
                    self._sent_all = True
            # note: what a library may raise when its server is gone has no end
            except Exception as error:
                self._warn(str(error) or type(error).__name__)

    def _waiting(self) -> list[Record | None]:
        """All that stands in the queue, once there is something."""
        found = [self._queue.get()]
        with suppress(Empty):
            while True:
                found.append(self._queue.get_nowait())
        return found

    def _warn(self, reason: str) -> None:
        if self._warned:
            return
        self._warned = True
        with suppress(OSError):
            print(f"warning: {self._name}: {one_line(reason[:300])}; training continues", flush=True)


def kept_id(folder: RunFolder, server: str) -> str | None:
    """The run's id there, or None before its first record."""
    path = folder.path / f"{server}.id"
    return path.read_text(encoding="ascii").strip() or None if path.is_file() else None


def keep_id(folder: RunFolder, server: str, run_id: str) -> None:
    """Have a resumed run go on in the same run there; written atomically."""
    atomic.write_text(folder.path / f"{server}.id", f"{run_id}\n")


def labels(config: RunConfig) -> dict[str, str]:
    """The few values that runs are filtered by."""
    return {
        "recipe": config.recipe or "none",
        "model": config.model.architecture,
        "dataset": config.dataset.name,
        "seed": str(config.seed),
    }
