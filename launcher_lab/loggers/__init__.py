"""The values of the loggers in this package; only a run imports their libraries."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Literal

from pydantic.dataclasses import dataclass

from launcher.config.choices import Records
from launcher.config.fields import STRICT
from launcher.errors import Problem, UserError

if TYPE_CHECKING:
    from launcher.config.schema import RunConfig
    from launcher.records.run_folder import RunFolder
    from launcher_lab.loggers.remote import RemoteSink


@dataclass(frozen=True, config=STRICT)
class Wandb(Records):
    """Weights & Biases; `mode` null uses the environment variable WANDB_MODE."""

    name: Literal["wandb"]
    project: str
    entity: str | None
    mode: Literal["online", "offline"] | None

    def check(self) -> None:
        _check_installed("wandb", "wandb")

    def sink(self, folder: RunFolder, config: RunConfig) -> RemoteSink:
        from launcher_lab.loggers.remote import RemoteSink
        from launcher_lab.loggers.trackers import WandbTracker

        return RemoteSink("Weights & Biases", WandbTracker(folder, config, self))


@dataclass(frozen=True, config=STRICT)
class Mlflow(Records):
    """An MLflow server; `uri` null uses the environment variable MLFLOW_TRACKING_URI."""

    name: Literal["mlflow"]
    uri: str | None
    experiment: str

    def check(self) -> None:
        _check_installed("mlflow", "mlflow-skinny")
        if self.uri is None and not os.environ.get("MLFLOW_TRACKING_URI"):
            message = "no server; set logger.uri=http://HOST:5000, or the environment variable MLFLOW_TRACKING_URI"
            raise UserError(Problem(message, "logger.uri", None))

    def sink(self, folder: RunFolder, config: RunConfig) -> RemoteSink:
        from launcher_lab.loggers.remote import RemoteSink
        from launcher_lab.loggers.trackers import MlflowTracker

        return RemoteSink("MLflow", MlflowTracker(folder, config, self))


def _is_installed(module: str) -> bool:
    spec = importlib.util.find_spec(module)
    # note: a folder of that name, such as W&B's output, has a spec without an origin
    return spec is not None and spec.origin is not None


def _check_installed(module: str, package: str) -> None:
    """Check that a logger's library is installed.

    Raises UserError if the library is not installed.
    """
    if not _is_installed(module):
        message = f"needs the package {package}; run {sys.executable} -m pip install {package}"
        raise UserError(Problem(message, "logger", module))
