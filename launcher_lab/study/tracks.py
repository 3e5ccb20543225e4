"""Tracks of `train speedrun`: an accuracy on a data set, the values of every run, and the test of a record."""

import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from launcher.config.compose import compose
from launcher.config.similar import did_you_mean
from launcher.config.yaml_file import read_mapping
from launcher.data.identity import identity
from launcher.errors import Problem, UserError, shown

_FILE = Path(__file__).with_name("tracks.yaml")
_OWN = "own"
# Keys of networks that an algorithm learns from, or of their outputs.
_TEACHERS = re.compile(r"algorithms\.(\w+)\.(teacher|path)")
_COUNTS = re.compile(r"dataset\.(classes|\w+_samples)")


@dataclass(frozen=True)
class Track:
    """A track: its name, the target in percent of top-1, and the values that the config of every run must have."""

    name: str
    data: str
    target: float
    values: Mapping[str, Any]

    @property
    def identity(self) -> str | None:
        """Return the identity of the track's built-in images; None if they are files."""
        own = {key: value for key, value in self.values.items() if key.startswith("dataset.") and value is not None}
        if (name := own.pop("dataset.name", None)) is None:
            return None
        return identity(compose([f"dataset={name}", *(f"{key}={value}" for key, value in own.items())]).config)


@dataclass(frozen=True)
class Rules:
    """What is equal in all tracks: the number of runs, and the p-value below which they are a record."""

    runs: int
    p: float

    @property
    def seeds(self) -> str:
        """Return the seeds as a word of the command line."""
        return ",".join(map(str, range(self.runs)))


@cache
def tracks_file() -> dict[str, Any]:
    """Read tracks.yaml."""
    return read_mapping(_FILE)


def rules() -> Rules:
    """Return the rules of all tracks."""
    return Rules(tracks_file()["runs"], tracks_file()["p"])


def track(name: str) -> Track:
    """Return a track by name; `own:62.5` is 62.5 % on any data set.

    Raises UserError if there is none.
    """
    file = tracks_file()
    tracks, (own, _, text) = file["tracks"], name.partition(":")
    if own == _OWN and re.fullmatch(r"\d{1,2}(\.\d+)?", text):
        chosen: dict[str, Any] = {"data": _OWN, "target": float(text)}
    elif name in tracks:
        chosen = tracks[name]
    else:
        message = f"no such track; {did_you_mean(name, tracks)}; {_OWN}:62.5 is top-1 of 62.5 % on your images"
        raise UserError(Problem(message, "track", name))
    return Track(name, chosen["data"], float(chosen["target"]), {**file["values"], **file["data"][chosen["data"]]})


def refusals(track: Track, values: Mapping[str, Any], *, are_counted: bool = True) -> Iterator[Problem]:
    """Yield why runs with dotted values are no record of a track.

    are_counted: the images have been counted, so their numbers must not be null.
    """
    for key, wanted in track.values.items():
        own = values.get(key)
        # note: a config does not tell 1 from true
        if (type(own), own) != (type(wanted), wanted) and (are_counted or own is not None or not _COUNTS.match(key)):
            option = f"; set {key.removesuffix('.name')}={wanted}" if key.endswith(".name") else ""
            yield Problem(f"must be {_text(wanted)} for track={track.name}{option}", key, _text(own))
    for key, own in values.items():
        if (match := _TEACHERS.fullmatch(key)) and own is not None:
            name = match[1]
            yield Problem(f"the training of other networks is not timed; set algorithms.{name}=off", key, shown(own))


def _text(value: object) -> str:
    return "null" if value is None else str(value).lower()


def p_value(top1: Sequence[float], target: float) -> float:
    """Return the probability of a mean at least this far above the target if the true mean were the target.

    The test is Student's for one sample, one-sided. Runs without spread have no test: 1.
    """
    spread = statistics.stdev(top1)
    if spread == 0:
        return 1.0
    from scipy.special import stdtr

    return float(stdtr(len(top1) - 1, (target - statistics.fmean(top1)) / (spread / math.sqrt(len(top1)))))
