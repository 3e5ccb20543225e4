"""Where a run's records go, beside metrics.jsonl, which every run has."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from launcher.config.algorithms import STRICT
from launcher.config.durations import Duration


@dataclass(frozen=True, config=STRICT)
class Records:
    """What every logger has: how often a line is written, and whether TensorBoard's files are written too."""

    interval: Duration
    tensorboard: bool


@dataclass(frozen=True, config=STRICT)
class Jsonl(Records):
    name: Literal["jsonl"]


@dataclass(frozen=True, config=STRICT)
class TensorBoard(Records):
    name: Literal["tensorboard"]


@dataclass(frozen=True, config=STRICT)
class Wandb(Records):
    """Weights & Biases, through its own library; `mode` null leaves it to that library's WANDB_MODE."""

    name: Literal["wandb"]
    project: str
    entity: str | None
    mode: Literal["online", "offline"] | None


@dataclass(frozen=True, config=STRICT)
class Mlflow(Records):
    """An MLflow server, through its own library; `uri` null leaves it to that library's MLFLOW_TRACKING_URI."""

    name: Literal["mlflow"]
    uri: str | None
    experiment: str


Logger = Annotated[Jsonl | TensorBoard | Wandb | Mlflow, Field(discriminator="name")]
