"""Trackers for Weights & Biases and MLflow, which use their own libraries."""

import json
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Literal, TypeVar

from launcher.config.layers import leaves
from launcher.config.resolved import as_mapping
from launcher.config.schema import RunConfig
from launcher.config.tasks import Metric
from launcher.records.metrics import Record, Row, read_metrics, scalars
from launcher.records.run_folder import RunFolder
from launcher_lab.loggers import Mlflow, Wandb
from launcher_lab.loggers.remote import Outcome, labels, save_id, saved_id

_LONGEST_TAG = 64
_SECONDS_TO_OPEN, _SECONDS_TO_FINISH = 30, 12
# Limits of MLflow's REST API: metrics and parameters per request, characters per value.
_METRICS, _PARAMETERS, _LONGEST = 1000, 100, 6000
# The library's default is seven attempts of two minutes.
_PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}

T = TypeVar("T")


class WandbTracker:
    """One run of a W&B project; if the server is unreachable at the start, an offline run for `wandb sync`."""

    def __init__(self, folder: RunFolder, config: RunConfig, logger: Wandb):
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


class MlflowTracker:
    """One run of an MLflow experiment."""

    def __init__(self, folder: RunFolder, config: RunConfig, logger: Mlflow):
        self._folder, self._config, self._logger = folder, config, logger
        self._client: Any = None
        self._id = ""

    def open(self) -> str | None:
        for name, value in _PATIENCE.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient(self._logger.uri)
        self._id = saved_id(self._folder, "mlflow") or self._create()
        self._client.update_run(self._id, status="RUNNING")
        # note: MLflow's parameters are immutable; a run resumed with other values keeps the first ones
        logged = self._client.get_run(self._id).data.params
        values = dict(leaves(as_mapping(self._config)))
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
        new = [Param(key, text[:_LONGEST]) for key, text in texts.items() if key not in logged]
        for batch in _batches(new, _PARAMETERS):
            self._client.log_batch(self._id, params=batch)
        return None

    def send(self, records: Sequence[Record]) -> None:
        self._log((record.time, record.step, scalars(record)) for record in records)

    def finish(self, outcome: Outcome) -> None:
        rows = read_metrics(self._folder.metrics)
        if rows:
            self._log([(rows[-1]["time"], rows[-1]["step"], closing_scalars(rows, self._config.task.primary))])
        self._client.set_terminated(self._id, status=_STATUS[outcome])

    def _create(self) -> str:
        name = self._logger.experiment
        existing = self._client.get_experiment_by_name(name)
        experiment = existing.experiment_id if existing else self._client.create_experiment(name)
        tags = {**labels(self._config), "run_folder": str(self._folder.path.resolve())}
        created = self._client.create_run(experiment, tags=tags, run_name=self._folder.path.name)
        save_id(self._folder, "mlflow", created.info.run_id)
        return str(created.info.run_id)

    def _log(self, points: Iterable[tuple[float, int, dict[str, float]]]) -> None:
        from mlflow.entities import Metric

        metrics = (Metric(n, v, int(1000 * time), step) for time, step, values in points for n, v in values.items())
        for batch in _batches(metrics, _METRICS):
            self._client.log_batch(self._id, metrics=batch)


def _batches(values: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(values)
    while batch := list(islice(rest, size)):
        yield batch


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
