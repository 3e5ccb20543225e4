"""Loggers of this package, one file each with its values and code; only a run imports their libraries."""

from launcher_lab.loggers.mlflow import Mlflow
from launcher_lab.loggers.several import Several
from launcher_lab.loggers.wandb import Wandb

__all__ = ["Mlflow", "Several", "Wandb"]
