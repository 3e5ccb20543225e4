"""Only metrics.jsonl in the run folder, which every run has."""

from typing import Literal

from pydantic.dataclasses import dataclass

from launcher.config.choices import LoggerConfig
from launcher.config.fields import STRICT


@dataclass(frozen=True, config=STRICT)
class Jsonl(LoggerConfig):
    """Only metrics.jsonl in the run folder."""

    name: Literal["jsonl"]
