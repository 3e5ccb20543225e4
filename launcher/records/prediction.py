"""The estimate made before a run, kept beside it, and how far off it was."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher import atomic
from launcher.config.resolved import digest
from launcher.config.schema import RunConfig
from launcher.records.folder import RunFolder
from launcher.records.metrics import read_metrics

_FOLDER = ".estimates"
_NAME = "estimate.json"
CLOCKS = ("training", "evaluation", "saving")


@dataclass(frozen=True)
class Deviation:
    """Seconds on one of a run's clocks, as estimated and as they were; `error` is relative to the latter."""

    clock: str
    estimated: float
    actual: float

    @property
    def error(self) -> float:
        return self.estimated / self.actual - 1 if self.actual else 0.0


def keep_estimate(config: RunConfig, estimate: dict[str, Any]) -> Path:
    """Write an estimate where the next run of this config finds it; returns where."""
    path = _waiting(config)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_text(path, json.dumps(estimate, indent=2) + "\n")
    return path


def kept_estimates(runs: Path) -> list[Path]:
    """The files of all estimates below a folder of runs."""
    return sorted((runs / _FOLDER).glob("*.json"))


def adopt_estimate(config: RunConfig, folder: RunFolder) -> None:
    """Copy the newest estimate of this config into its run's folder, if one was made."""
    waiting = _waiting(config)
    if waiting.is_file():
        shutil.copyfile(waiting, folder.path / _NAME)


def deviations(folder: RunFolder) -> list[Deviation]:
    """Estimated and actual seconds of a finished run, clock by clock; none without an estimate or before the end."""
    path = folder.path / _NAME
    ends = [row for row in read_metrics(folder.metrics) if row["kind"] == "end" and row["finished"]]
    if not path.is_file() or not ends:
        return []
    try:
        estimated = json.loads(path.read_text())
        actual = {"training": "train_seconds", "evaluation": "eval_seconds", "saving": "save_seconds"}
        return [Deviation(c, float(estimated[c]["seconds"]), float(ends[-1][actual[c]])) for c in CLOCKS]
    except (ValueError, KeyError, TypeError):
        return []


def _waiting(config: RunConfig) -> Path:
    return Path(config.runs) / _FOLDER / f"{digest(config)[:16]}.json"
