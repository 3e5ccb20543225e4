"""A tracker of a logger that stores what it gets."""

import threading
from collections.abc import Sequence

from launcher.loggers.remote import Outcome
from launcher.records.metrics import Record


class Server:
    """A tracker that stores records; it can be unreachable, or block forever."""

    def __init__(self) -> None:
        self.unreachable = False
        self.refused = threading.Event()
        self.responds = threading.Event()
        self.responds.set()
        self.opened = 0
        self.steps: list[int] = []
        self.outcome: Outcome | None = None

    def open(self) -> str | None:
        self._respond()
        self.opened += 1
        return None

    def send(self, records: Sequence[Record]) -> None:
        self._respond()
        self.steps += [record.step for record in records]

    def finish(self, outcome: Outcome) -> None:
        self._respond()
        self.outcome = outcome

    def _respond(self) -> None:
        self.responds.wait()
        if self.unreachable:
            self.refused.set()
            raise ConnectionError("no route\nto host")
