"""Notices when a run's folder goes away under it: what is written on goes nowhere, and nothing of it would be found."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from launcher.records.folder import RunFolder

_INTERVAL = 1.0  # seconds


class KeptFolder:
    """While entered, looks whether the folder is still there and the run's; `on_lost` is called once it is not.

    The lock must hold the text that it held, and the records grow: inodes would tell more, but not every network file
    system keeps them. A disk that gives another error, or no answer, has lost nothing yet.
    """

    def __init__(self, run_folder: Path, on_lost: Callable[[], None], interval: float = _INTERVAL):
        folder = RunFolder(run_folder)
        self._path, self._metrics, self._on_lost, self._interval = run_folder, folder.metrics, on_lost, interval
        self._locks = {path: path.read_bytes() for path in folder.locks if path.is_file()}
        self._bytes = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="folder", daemon=True)
        self.lost: str | None = None  # what is gone

    def __enter__(self) -> KeptFolder:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Look a last time: a run may end before its loss was noticed."""
        self._closed.set()
        self._thread.join()
        self.lost = self.lost or self._surely()

    def _watch(self) -> None:
        while not self._closed.wait(self._interval):
            self.lost = self._surely()
            if self.lost is not None:
                self._on_lost()
                return

    def _surely(self) -> str | None:
        """Looks twice, since a network file system may show old names for a moment."""
        if self._look() is not None:
            self._closed.wait(self._interval)
            return self._look()
        return None

    def _look(self) -> str | None:
        try:
            if not self._path.is_dir():
                return "the folder is gone"
            for path, text in self._locks.items():
                if path.read_bytes() != text:
                    return f"{path.name} is another"
            size = self._metrics.stat().st_size if self._bytes or self._metrics.exists() else 0
            if size < self._bytes:
                return f"{self._metrics.name} was cut short or replaced"
            self._bytes = size
        except (FileNotFoundError, NotADirectoryError) as error:
            return f"{Path(error.filename).name} is gone"
        except OSError:
            return None
        return None
