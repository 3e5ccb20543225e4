"""The best lengths that finished runs of the same images on this machine had within a time."""

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from launcher.config.layers import COMMAND_LINE
from launcher.config.overrides import word_of
from launcher.config.resolved import is_free
from launcher.config.schema import RunConfig
from launcher.data.identity import identity
from launcher.records.origins import read_origins
from launcher.records.progress import duration
from launcher.records.run_folder import RunFolder, run_folders
from launcher_lab.study.curves import Curve, CurvePoint, build_curves
from launcher_lab.study.runs import RunSummary, read_run
from launcher_lab.study.scales import TOP1
from launcher_lab.study.speedup import quality_at

# Keys of a command that another length of the run does not repeat.
_OF_ONE_RUN = ("epochs", "seed", "run_name", "runs", "stop.minutes", "schedule.dilate", "budget")


@dataclass(frozen=True)
class KnownChoice:
    """A length with the top-1 to expect in percent, the range of the runs around it, and the words that train it."""

    words: tuple[str, ...]
    top1: float
    low: float
    high: float
    seconds: float
    price_per_hour: float | None

    @property
    def line(self) -> str:
        """The top-1, its range, time, cost, and the command."""
        span = f" ({self.low:.1f} to {self.high:.1f} %)" if self.low < self.high else " (one run)"
        cost = "" if self.price_per_hour is None else f" for {self.price_per_hour * self.seconds / 3600:,.2f} USD"
        return f"top-1 {self.top1:.1f} %{span} in {duration(self.seconds)}{cost}: train {shlex.join(self.words)}"


def known_choices(config: RunConfig, typed: Mapping[str, Any], processes: int, seconds: float) -> list[KnownChoice]:
    """Return the best lengths within a time by wall clock of up to three curves, the best one first.

    They are those of the finished runs in the folder of runs that have the images of a config, so many processes and
    the `typed` values. Between the measured lengths of a curve the top-1 is interpolated.
    """
    alike = [run for run in runs_of(config, typed) if run.world_size == processes]
    by_path = {run.path: run for run in alike}
    known = [one for curve in build_curves(alike) for one in _within(curve, by_path, config, seconds)]
    best: dict[str, KnownChoice] = {}
    for one in sorted(known, key=lambda one: (-one.top1, one.seconds)):
        best.setdefault(" ".join(word for word in one.words if not word.startswith("epochs=")), one)
    return [*best.values()][:3]


def runs_of(config: RunConfig, typed: Mapping[str, Any]) -> list[RunSummary]:
    """Return the runs with a top-1 in the folder of runs that have the images of a config and the `typed` values."""
    runs = [read_run(folder.path) for folder in run_folders(Path(config.runs))]
    images = identity(config, ()) if runs else None
    return [run for run in runs if run.identity == images and run.metric == TOP1 and _has(run, typed)]


def _has(run: RunSummary, typed: Mapping[str, Any]) -> bool:
    """Return whether a run has the typed values that decide its result."""
    values = run.values
    return all(
        value in (values.get(key), values.get(f"{key}.name")) or (key, value) == ("recipe", "auto")
        for key, value in typed.items()
        if not is_free(key) and key not in _OF_ONE_RUN and not key.startswith("dataset")
    )


def words_of(run: RunSummary) -> list[str]:
    """Return the words that set what a run's command line set, `recipe=auto` included, but the values of one run."""
    typed = [key for key, origin in read_origins(RunFolder(run.path)).items() if origin == COMMAND_LINE]
    words = [] if run.values.get("recipe") is None else [f"recipe={run.values['recipe']}"]
    for key in typed:
        word, inner = key.removesuffix(".name"), any(one.startswith(f"{key}.") for one in run.values)
        if key in _OF_ONE_RUN or key == "recipe":
            continue
        # note: the key of a switch has no value of its own
        value = run.values.get(key, "on" if inner else "off")
        plain = json.dumps(value, separators=(",", ":"))
        words.append(word_of(word, value) if isinstance(value, str) else f"{word}={plain}")
    return words


def _within(curve: Curve, runs: Mapping[Path, RunSummary], config: RunConfig, seconds: float) -> Iterator[KnownChoice]:
    """Yield the measured lengths of a curve within a time, and the one between them that takes all of it."""
    points, minutes = curve.on("wall"), seconds / 60
    costs, qualities = [point.cost("wall") or 0.0 for point in points], [point.quality for point in points]

    def choice(epochs: int, top1: float, cost: float, *around: CurvePoint) -> KnownChoice:
        words = words_of(runs[around[0].paths[-1]])
        values = [value for point in around for value in point.top1]
        price = config.hardware.price_per_hour
        return KnownChoice((*words, f"epochs={epochs}"), top1, min(values), max(values), 60 * cost, price)

    for point, cost in zip(points, costs, strict=True):
        if cost <= minutes and point.epochs is not None:
            yield choice(point.epochs, point.quality, cost, point)
    place = int(np.searchsorted(costs, minutes))
    if 0 < place < len(points):
        epochs = int(np.interp(minutes, costs, [point.epochs or 0 for point in points]))
        yield choice(epochs, quality_at(costs, qualities, minutes), minutes, *points[place - 1 : place + 1])
