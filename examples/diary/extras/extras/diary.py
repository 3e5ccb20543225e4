"""A diary of a run's evaluations: its values, read with every config."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic.dataclasses import dataclass

from launcher.config.choices import LoggerConfig
from launcher.config.fields import STRICT

if TYPE_CHECKING:
    from extras.sink import DiarySink
    from launcher.config.schema import RunConfig
    from launcher.records.run_folder import RunFolder


@dataclass(frozen=True, config=STRICT)
class Diary(LoggerConfig):
    name: Literal["diary"]
    file: str

    def sink(self, folder: RunFolder, config: RunConfig) -> DiarySink:
        from extras.sink import DiarySink  # note: imported only when a run starts

        return DiarySink(folder.path / self.file, config.task)
