"""A run at an MLflow server, through its own library."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

from lab.loggers import Mlflow
from lab.loggers.remote import Outcome, keep_id, kept_id, labels
from launcher.config.layers import leaves
from launcher.config.resolved import as_mapping
from launcher.config.schema import RunConfig
from launcher.records.folder import RunFolder
from launcher.records.metrics import Record, closing_scalars, read_metrics, scalars

# Most of each that one request may hold, and the longest value, by MLflow's REST API.
_METRICS, _PARAMETERS, _LONGEST = 1000, 100, 6000
# The library would try seven times for two minutes each.
_PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}

T = TypeVar("T")


class MlflowTracker:
    """One run of an experiment."""

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
        self._id = kept_id(self._folder, "mlflow") or self._create()
        self._client.update_run(self._id, status="RUNNING")
        # note: a parameter cannot be changed there; a run that goes on with other values keeps those of its start
        known = self._client.get_run(self._id).data.params
        values = dict(leaves(as_mapping(self._config)))
        new = [Param(key, _text(value)) for key, value in values.items() if key not in known]
        for some in _parts(new, _PARAMETERS):
            self._client.log_batch(self._id, params=some)
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
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self._client.create_experiment(name)
        tags = {**labels(self._config), "run_folder": str(self._folder.path.resolve())}
        created = self._client.create_run(experiment, tags=tags, run_name=self._folder.path.name)
        keep_id(self._folder, "mlflow", created.info.run_id)
        return str(created.info.run_id)

    def _log(self, points: Iterable[tuple[float, int, dict[str, float]]]) -> None:
        from mlflow.entities import Metric

        metrics = (Metric(n, v, int(1000 * time), step) for time, step, found in points for n, v in found.items())
        for some in _parts(metrics, _METRICS):
            self._client.log_batch(self._id, metrics=some)


def _parts(values: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(values)
    while some := list(islice(rest, size)):
        yield some


def _text(value: Any) -> str:
    return (value if isinstance(value, str) else json.dumps(value))[:_LONGEST]
