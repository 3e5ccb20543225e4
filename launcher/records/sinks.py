"""Where a config's records go: the append-only file first, then what its logger asks for."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Protocol

from launcher.config.loggers import Logger, Mlflow, Wandb
from launcher.config.schema import RunConfig
from launcher.errors import Problem, UserError
from launcher.records.folder import RunFolder
from launcher.records.metrics import MetricsWriter, Record
from launcher.records.mlflow import MlflowTracker
from launcher.records.remote import RemoteSink
from launcher.records.tensorboard import TensorBoard
from launcher.records.wandb import WandbTracker

# Logger to the package that a user installs for it.
_PACKAGES = {"wandb": "wandb", "mlflow": "mlflow-skinny"}


class Sink(Protocol):
    """Takes records as they come; an OSError costs the record, not the run."""

    def write(self, record: Record) -> None: ...

    def close(self) -> None: ...


def build_sinks(folder: RunFolder, config: RunConfig) -> list[Sink]:
    """The sinks of a run's first rank."""
    logger = config.logger
    sinks: list[Sink] = [MetricsWriter(folder.metrics)]
    if logger.tensorboard:
        sinks.append(TensorBoard(folder.tensorboard))
    if isinstance(logger, Wandb):
        sinks.append(RemoteSink("Weights & Biases", WandbTracker(folder, config, logger)))
    elif isinstance(logger, Mlflow):
        sinks.append(RemoteSink("MLflow", MlflowTracker(folder, config, logger)))
    return sinks


def check_logger(logger: Logger) -> None:
    """See that a logger can work here, before a run starts.

    Raises:
        UserError: its package is not installed, or its server is not named.
    """
    package = _PACKAGES.get(logger.name)
    if package is not None and not _is_installed(logger.name):
        message = f"needs a package that is not installed; get it by: {sys.executable} -m pip install {package}"
        raise UserError(Problem(message, "logger", logger.name))
    if isinstance(logger, Mlflow) and logger.uri is None and not os.environ.get("MLFLOW_TRACKING_URI"):
        message = "no server is named; give logger.uri=http://HOST:5000, or set MLFLOW_TRACKING_URI"
        raise UserError(Problem(message, "logger.uri", None))


def _is_installed(module: str) -> bool:
    found = importlib.util.find_spec(module)
    # note: a mere folder of that name, as W&B leaves where it ran, is found too, but has no origin
    return found is not None and found.origin is not None
