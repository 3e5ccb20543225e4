"""Records to an MLflow server, by its own library."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Literal, TypeVar

from pydantic.dataclasses import dataclass

from launcher.config.choices import LoggerConfig
from launcher.config.fields import STRICT
from launcher.config.layers import leaves
from launcher.config.resolved import as_mapping
from launcher.config.schema import RunConfig
from launcher.errors import Problem, UserError
from launcher.installation import check_installed
from launcher.loggers.remote import Outcome, RemoteSink, closing_scalars, labels, save_id, saved_id
from launcher.records.metrics import Record, read_metrics
from launcher.records.run_folder import RunFolder
from launcher.records.sinks import scalars

# Limits of MLflow's REST API: metrics and parameters per request, characters per value.
_METRICS, _PARAMETERS, _LONGEST = 1000, 100, 6000
# The library's default is seven attempts of two minutes.
_PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}

T = TypeVar("T")


@dataclass(frozen=True, config=STRICT)
class MlflowValues:
    """An MLflow server; `uri` null uses the environment variable MLFLOW_TRACKING_URI."""

    uri: str | None
    experiment: str

    def check(self, key: str = "logger") -> None:
        check_installed("mlflow", "mlflow", "mlflow-skinny")
        if self.uri is None and not os.environ.get("MLFLOW_TRACKING_URI"):
            message = f"no server; set {key}.uri=http://HOST:5000, or the environment variable MLFLOW_TRACKING_URI"
            raise UserError(Problem(message, f"{key}.uri", None))

    def sink(self, folder: RunFolder, config: RunConfig) -> RemoteSink:
        return RemoteSink("MLflow", MlflowTracker(folder, config, self))


@dataclass(frozen=True, config=STRICT)
class Mlflow(MlflowValues, LoggerConfig):
    """metrics.jsonl, and an MLflow server."""

    has_threads = True

    name: Literal["mlflow"]


class MlflowTracker:
    """One run of an MLflow experiment."""

    def __init__(self, folder: RunFolder, config: RunConfig, logger: MlflowValues):
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
