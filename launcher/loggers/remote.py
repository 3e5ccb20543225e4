"""Send records to a tracking server in a thread, so that training does not wait for the server."""

import threading
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Literal, Protocol

from launcher.config.schema import RunConfig
from launcher.config.tasks import Metric
from launcher.errors import one_line
from launcher.files import atomic
from launcher.records.metrics import EndRecord, Record, Row
from launcher.records.run_folder import RunFolder

Outcome = Literal["finished", "stopped", "failed"]

# Seconds that a run waits at its end for unsent records; a stop request allows 30 s in total.
CLOSE_SECONDS = 15.0
# Shorter after an error, since the other ranks wait for the notification.
FAILED_SECONDS = 3.0


class Tracker(Protocol):
    """A run of a tracking library; any call may raise an error or take long."""

    def open(self) -> str | None:
        """Start or resume the run, and return a warning for the user or None; called again after an error."""

    def send(self, records: Sequence[Record]) -> None: ...

    def finish(self, outcome: Outcome) -> None: ...


class RemoteSink:
    """Send records to a tracker in a thread; send failed ones again with the next, and warn once."""

    def __init__(self, name: str, tracker: Tracker, close_seconds: float = CLOSE_SECONDS):
        self._name, self._tracker, self._close_seconds = name, tracker, close_seconds
        self._queue: SimpleQueue[Record | None] = SimpleQueue()
        self._outcome: Outcome = "failed"
        self._opened = self._warned = self._sent_all = False
        # note: a daemon thread, because a call that never returns must not block the exit
        self._thread = threading.Thread(target=self._send_all, name=f"records-to-{name}", daemon=True)
        self._thread.start()

    def write(self, record: Record) -> None:
        if isinstance(record, EndRecord):
            self._outcome = "finished" if record.finished else "stopped"
        self._queue.put(record)

    def close(self) -> None:
        self.end()
        self.wait(self._close_seconds)

    def end(self) -> None:
        """Let the thread send what is queued, and end."""
        self._queue.put(None)

    def wait(self, seconds: float) -> None:
        """Wait so long for the end of the thread, and warn if it has not sent all records."""
        self._thread.join(min(FAILED_SECONDS, seconds) if self._outcome == "failed" else seconds)
        if not self._sent_all:
            self._warn("some records were not sent; metrics.jsonl has all of them")

    def _send_all(self) -> None:
        pending: list[Record] = []
        ending = False
        while not ending:
            queued = self._queued()
            ending = None in queued
            pending += [record for record in queued if record is not None]
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
            # note: libraries raise many types when the server is unreachable
            except Exception as error:
                self._warn(str(error) or type(error).__name__)

    def _queued(self) -> list[Record | None]:
        """Wait for a record and return all queued ones."""
        queued = [self._queue.get()]
        with suppress(Empty):
            while True:
                queued.append(self._queue.get_nowait())
        return queued

    def _warn(self, reason: str) -> None:
        if self._warned:
            return
        self._warned = True
        with suppress(OSError):
            print(f"warning: {self._name}: {one_line(reason[:300])}; training continues", flush=True)


def saved_id(folder: RunFolder, server: str) -> str | None:
    """Return the run's id on the server, or None before its first record."""
    path = folder.path / f"{server}.id"
    return path.read_text(encoding="ascii").strip() or None if path.is_file() else None


def save_id(folder: RunFolder, server: str, run_id: str) -> None:
    """Save the run's id on the server atomically, so that a resume continues the same run."""
    atomic.write_text(folder.path / f"{server}.id", f"{run_id}\n")


def labels(config: RunConfig) -> dict[str, str]:
    """Return the values to filter runs by."""
    return {
        "recipe": config.recipe or "none",
        "model": config.model.architecture,
        "dataset": config.dataset.name,
        "seed": str(config.seed),
    }


def closing_scalars(rows: Sequence[Row], primary: Metric) -> dict[str, float]:
    """Return the last and best value of the primary metric so far, and the seconds of the run's clocks."""
    name = primary.name
    values = [(row["kind"], row["metrics"].get(name)) for row in rows if row["kind"] in ("eval", "test")]
    evaluated, tested = ([value for kind, value in values if kind == one] for one in ("eval", "test"))
    last, test = (values[-1] if values else None for values in (evaluated, tested))
    closing = {f"end/{name}": last, f"end/best_{name}": primary.best(evaluated), f"end/test_{name}": test}
    scalars = {key: value for key, value in closing.items() if value is not None}
    if ends := [row for row in rows if row["kind"] == "end"]:
        scalars |= {f"end/{clock}": ends[-1][clock] for clock in ("train_seconds", "eval_seconds", "save_seconds")}
    return scalars
