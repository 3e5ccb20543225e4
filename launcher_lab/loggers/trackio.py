"""Records to Trackio, by its own library: a database of this machine, or a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic.dataclasses import dataclass

from launcher.config.choices import LoggerConfig
from launcher.config.fields import STRICT
from launcher.config.resolved import as_mapping
from launcher.config.schema import RunConfig
from launcher.records.metrics import Record, read_metrics
from launcher.records.run_folder import RunFolder
from launcher.records.sinks import scalars
from launcher_lab.loggers.remote import Outcome, RemoteSink, check_installed, closing_scalars, labels, save_id, saved_id


@dataclass(frozen=True, config=STRICT)
class TrackioValues:
    """Trackio: `train` writes into TRACKIO_DIR, or sends to the server of TRACKIO_SERVER_URL or TRACKIO_SPACE_ID."""

    project: str

    def check(self, key: str = "logger") -> None:
        check_installed("trackio", "trackio")

    def sink(self, folder: RunFolder, config: RunConfig) -> RemoteSink:
        return RemoteSink("Trackio", TrackioTracker(folder, config, self))


@dataclass(frozen=True, config=STRICT)
class Trackio(TrackioValues, LoggerConfig):
    """metrics.jsonl, and Trackio."""

    has_threads = True

    name: Literal["trackio"]


class TrackioTracker:
    """One run of a Trackio project."""

    def __init__(self, folder: RunFolder, config: RunConfig, logger: TrackioValues):
        self._folder, self._config, self._logger = folder, config, logger
        self._run: Any = None

    def open(self) -> str | None:
        import trackio

        # note: the library finds a run by its name, and a folder of this name may have existed before
        name = saved_id(self._folder, "trackio")
        self._run = trackio.init(
            project=self._logger.project,
            name=name or self._folder.path.name,
            config={**labels(self._config), **as_mapping(self._config)},
            resume="allow" if name else "never",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        save_id(self._folder, "trackio", str(self._run.name))
        return None

    def send(self, records: Sequence[Record]) -> None:
        for record in records:
            if values := scalars(record):
                self._run.log(values, step=record.step)

    def finish(self, outcome: Outcome) -> None:
        rows = read_metrics(self._folder.metrics)
        if values := closing_scalars(rows, self._config.task.primary):
            self._run.log(values, step=rows[-1]["step"])
        self._run.finish()
