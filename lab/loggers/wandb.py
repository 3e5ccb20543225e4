"""A run at Weights & Biases, through its own library."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Literal

from lab.loggers import Wandb
from lab.loggers.remote import Outcome, keep_id, kept_id, labels
from launcher.config.resolved import as_mapping
from launcher.config.schema import RunConfig
from launcher.records.folder import RunFolder
from launcher.records.metrics import Record, closing_scalars, read_metrics, scalars

_LONGEST_TAG = 64
_SECONDS_TO_OPEN, _SECONDS_TO_FINISH = 30, 12


class WandbTracker:
    """One run of a project; where its server does not answer at first, a run offline, which `wandb sync` sends."""

    def __init__(self, folder: RunFolder, config: RunConfig, logger: Wandb):
        self._folder, self._config, self._logger = folder, config, logger
        self._run: Any = None

    def open(self) -> str | None:
        import wandb

        run_id = kept_id(self._folder, "wandb") or uuid.uuid4().hex[:12]
        keep_id(self._folder, "wandb", run_id)
        told = None
        try:
            self._run = self._begin(run_id, self._logger.mode)
        except wandb.Error as error:
            wandb.teardown()  # note: its service keeps the id taken otherwise
            told = f"{error}: its records go to {self._folder.path / 'wandb'}, for `wandb sync`"
            self._run = self._begin(run_id, "offline")
        self._drop_links()
        # note: its own counter of steps takes no step twice, which a resumed run needs
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")
        return told

    def send(self, records: Sequence[Record]) -> None:
        for record in records:
            if found := scalars(record):
                self._run.log({**found, "step": record.step})

    def finish(self, outcome: Outcome) -> None:
        import wandb

        self._run.summary.update(closing_scalars(read_metrics(self._folder.metrics), self._config.task.primary))
        self._run.finish(exit_code=int(outcome != "finished"))
        # note: only then are the files whole; a rank leaves no time for it afterwards
        wandb.teardown()

    def _drop_links(self) -> None:
        """A run folder with links is refused when the run goes on; the library links to its log in any case."""
        for path in (self._folder.path / "wandb").rglob("*.log"):
            if path.is_symlink():
                path.unlink()

    def _begin(self, run_id: str, mode: Literal["online", "offline"] | None) -> Any:
        import wandb

        return wandb.init(
            project=self._logger.project,
            entity=self._logger.entity,
            mode=mode,
            id=run_id,
            resume="allow",
            name=self._folder.path.name,
            dir=str(self._folder.path),
            config=as_mapping(self._config),
            allow_val_change=True,
            tags=[f"{name} {value}"[:_LONGEST_TAG] for name, value in labels(self._config).items()],
            settings=wandb.Settings(
                console="off",
                silent=True,
                symlink=False,
                finish_timeout=_SECONDS_TO_FINISH,
                **({} if mode == "offline" else {"init_timeout": _SECONDS_TO_OPEN}),
            ),
        )
