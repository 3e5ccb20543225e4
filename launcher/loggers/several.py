"""Several loggers at once: `logger=[tensorboard,wandb,mlflow]`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Literal

from pydantic.dataclasses import dataclass

from launcher.config.choices import LoggerConfig
from launcher.config.fields import STRICT
from launcher.config.schema import RunConfig
from launcher.errors import Problems
from launcher.loggers.mlflow import MlflowValues
from launcher.loggers.prometheus import PrometheusSink, check_library
from launcher.loggers.remote import CLOSE_SECONDS, RemoteSink
from launcher.loggers.wandb import WandbValues
from launcher.records.background import BackgroundSink
from launcher.records.metrics import Record
from launcher.records.run_folder import RunFolder


@dataclass(frozen=True, config=STRICT)
class Several(LoggerConfig):
    """Several loggers at once; null or false is one that is off."""

    combines = has_threads = True

    name: Literal["several"]
    prometheus: bool
    mlflow: MlflowValues | None
    wandb: WandbValues | None

    @classmethod
    def instead_of(cls, word: str) -> str | None:
        return f"type logger=[{word}]" if "," in word else None

    def check(self) -> None:
        problems = Problems()
        for name, values in self._loggers():
            with problems.collected():
                values.check(f"logger.{name}")
        with problems.collected():
            if self.prometheus:
                check_library()
        problems.settle()

    def sink(self, folder: RunFolder, config: RunConfig) -> SeveralSinks:
        files = [BackgroundSink("logger=prometheus", PrometheusSink(folder))] if self.prometheus else []
        return SeveralSinks([values.sink(folder, config) for _, values in self._loggers()], files)

    def _loggers(self) -> Iterator[tuple[str, MlflowValues | WandbValues]]:
        named = {"mlflow": self.mlflow, "wandb": self.wandb}
        yield from ((name, values) for name, values in named.items() if values is not None)


class SeveralSinks:
    """Writes each record to files, and sends it to several servers, in a thread each.

    All servers together get the time of one at the end.
    """

    def __init__(self, sinks: Sequence[RemoteSink], files: Sequence[BackgroundSink] = ()):
        self._sinks, self._files = sinks, files

    def write(self, record: Record) -> None:
        for file in self._files:
            file.write(record)
        for sink in self._sinks:
            sink.write(record)

    def close(self) -> None:
        until = time.monotonic() + CLOSE_SECONDS
        for sink in self._sinks:
            sink.end()
        for file in self._files:
            file.close()
        for sink in self._sinks:
            sink.wait(max(0.0, until - time.monotonic()))
