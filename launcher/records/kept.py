"""A run's folder that goes away under it: what is written on goes nowhere, and nothing of it would be found."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from launcher import atomic
from launcher.errors import UserError
from launcher.records.folder import RunFolder, create_or_join

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
        if self.look() is not None:
            self._closed.wait(self._interval)
            return self.look()
        return None

    def look(self) -> str | None:
        """What is gone, if anything is."""
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


class Rescue:
    """Where a run saves at its end: in its folder, or where that is lost in one of its name below `elsewhere`."""

    def __init__(self, folder: RunFolder, elsewhere: str):
        self._folder, self._elsewhere = folder, elsewhere
        self._kept, self._config = KeptFolder(folder.path, on_lost=lambda: None), folder.config.read_bytes()

    def folder(self) -> RunFolder:
        """The folder, made if need be.

        Raises:
            UserError: it cannot be made, or is another run's.
        """
        if self._kept.look() is None:
            return self._folder
        found = create_or_join(Path(self._elsewhere), self._folder.path.name)
        if found.exists() and found.config.read_bytes() != self._config:
            raise UserError(f"{found.path} is another run's: what was trained is lost")
        with atomic.writing(found.config) as temporary:
            temporary.write_bytes(self._config)
        return found


def rescued(run_folder: Path, elsewhere: str | None) -> Path | None:
    """The folder that has a lost run's last save, if there is one."""
    folder = RunFolder(Path(elsewhere) / run_folder.name) if elsewhere is not None else None
    return folder.path if folder is not None and folder.newest_step() is not None else None
