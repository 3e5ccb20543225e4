"""Records to Weights & Biases, by its own library."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Literal

from pydantic.dataclasses import dataclass

from launcher.config.choices import LoggerConfig
from launcher.config.fields import STRICT
from launcher.config.resolved import as_mapping
from launcher.config.schema import RunConfig
from launcher.installation import check_installed
from launcher.loggers.remote import Outcome, RemoteSink, closing_scalars, labels, save_id, saved_id
from launcher.records.metrics import Record, read_metrics
from launcher.records.run_folder import RunFolder
from launcher.records.sinks import scalars

_LONGEST_TAG = 64
_SECONDS_TO_OPEN, _SECONDS_TO_FINISH = 30, 12


@dataclass(frozen=True, config=STRICT)
class WandbValues:
    """Weights & Biases; `mode` null uses the environment variable WANDB_MODE."""

    project: str
    entity: str | None
    mode: Literal["online", "offline"] | None

    def check(self, key: str = "logger") -> None:
        check_installed("wandb", "wandb", "wandb")

    def sink(self, folder: RunFolder, config: RunConfig) -> RemoteSink:
        return RemoteSink("Weights & Biases", WandbTracker(folder, config, self))


@dataclass(frozen=True, config=STRICT)
class Wandb(WandbValues, LoggerConfig):
    """metrics.jsonl, and Weights & Biases."""

    has_threads = True

    name: Literal["wandb"]


class WandbTracker:
    """One run of a W&B project; if the server is unreachable at the start, an offline run for `wandb sync`."""

    def __init__(self, folder: RunFolder, config: RunConfig, logger: WandbValues):
        self._folder, self._config, self._logger = folder, config, logger
        self._run: Any = None

    def open(self) -> str | None:
        import wandb

        run_id = saved_id(self._folder, "wandb") or uuid.uuid4().hex[:12]
        save_id(self._folder, "wandb", run_id)
        warning = None
        try:
            self._run = self._start(run_id, self._logger.mode)
        except wandb.Error as error:
            wandb.teardown()  # note: otherwise W&B's service blocks the id
            warning = f"writes records to {self._folder.path / 'wandb'}; upload them later with `wandb sync`: {error}"
            self._run = self._start(run_id, "offline")
        self._drop_links()
        # note: W&B's own step counter rejects the repeated steps of a resumed run
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")
        return warning

    def send(self, records: Sequence[Record]) -> None:
        for record in records:
            if values := scalars(record):
                self._run.log({**values, "step": record.step})

    def finish(self, outcome: Outcome) -> None:
        import wandb

        self._run.summary.update(closing_scalars(read_metrics(self._folder.metrics), self._config.task.primary))
        self._run.finish(exit_code=int(outcome != "finished"))
        # note: completes the files before the rank exits
        wandb.teardown()

    def _drop_links(self) -> None:
        """Remove the library's links to its log, since a run folder with links cannot resume."""
        for path in (self._folder.path / "wandb").rglob("*.log"):
            if path.is_symlink():
                path.unlink()

    def _start(self, run_id: str, mode: Literal["online", "offline"] | None) -> Any:
        import wandb

        waits = {} if mode == "offline" else {"init_timeout": _SECONDS_TO_OPEN}
        settings = wandb.Settings(console="off", silent=True, symlink=False, finish_timeout=_SECONDS_TO_FINISH, **waits)
        tags = [f"{name} {value}"[:_LONGEST_TAG] for name, value in labels(self._config).items()]
        return wandb.init(
            project=self._logger.project, entity=self._logger.entity, mode=mode, id=run_id, resume="allow",
            name=self._folder.path.name, dir=str(self._folder.path), config=as_mapping(self._config),
            allow_val_change=True, tags=tags, settings=settings,
        )  # fmt: skip
