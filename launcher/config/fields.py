"""Types of values with their own syntax: durations, targets, folder names and paths."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from launcher.counts import count_of

# note: deferred, because classes inside the run config need no validator of their own
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)

Probability = Annotated[float, Field(ge=0, le=1)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]


def _rising(pair: list[float]) -> list[float]:
    if pair[0] > pair[1]:
        raise ValueError(f"must have the smaller number first: [{pair[1]:g},{pair[0]:g}]")
    return pair


_PAIR, _RISING = Field(min_length=2, max_length=2), AfterValidator(_rising)
ProbabilityRange = Annotated[list[Probability], _PAIR, _RISING]
FractionRange = Annotated[list[Fraction], _PAIR, _RISING]
PositiveRange = Annotated[list[Positive], _PAIR, _RISING]
# Of an image: the edge of a square, or [height, width].
Edges = Count | Annotated[list[Count], _PAIR]


def edges(size: int | Sequence[int]) -> tuple[int, int]:
    """Return height and width of a size of images."""
    height, width = (size, size) if isinstance(size, int) else size
    return height, width


def in_ratio(view: int, size: tuple[int, ...]) -> tuple[int, ...]:
    """Return the size whose shorter edge is `view`, in the ratio of another size."""
    return tuple(round(view * edge / min(size)) for edge in size)


def size_value(size: Sequence[int]) -> int | list[int]:
    """Return a size as a key has it: the edge of a square, or height and width."""
    return size[0] if len(set(size)) == 1 else [*size]


def size_text(size: Sequence[int]) -> str:
    """Return a size in words: `224`, or `128 x 384` of height and width."""
    return " x ".join(f"{edge:,}" for edge in (size if len(set(size)) > 1 else size[:1]))


def _positive(values: list[float]) -> list[float]:
    if min(values, default=0) <= 0:
        raise ValueError("must be a list of numbers above 0, one per class")
    return values


OnePerClass = Annotated[list[float], AfterValidator(_positive)]

_DURATION = re.compile(r"([0-9]{1,18}(?:\.[0-9]*)?|\.[0-9]+)(ep|ba|dur)")


def parse_duration(text: str) -> tuple[float, str]:
    """Split `8ep` into (8.0, "ep").

    Raises ValueError if the text is not a number followed by ep, ba or dur.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError("must be a duration: 8ep (epochs), 100ba (batches) or 0.5dur (fraction of the run)")
    return float(match[1]), match[2]


Duration = Annotated[str, AfterValidator(lambda text: text if parse_duration(text) else "")]


@dataclass(frozen=True)
class Within:
    """Annotation of a duration: the fraction of the run to which `schedule.fit=on` shortens it."""

    fraction: float


@dataclass(frozen=True)
class Role:
    """Annotation of a key, or of all keys or those listed of a section: where it may change, or what it is not of."""

    of: Literal["resume", "evaluation", "job", "place", "absolute"]
    keys: tuple[str, ...] = ()


# May change when a run resumes, and in an evaluation; a job of a cluster sets it; is where a run is, nothing of its
# result; is an absolute path in a run, so that it resumes from any folder.
RESUME, EVALUATION, JOB, PLACE, ABSOLUTE = (
    Role("resume"),
    Role("evaluation"),
    Role("job"),
    Role("place"),
    Role("absolute"),
)


@cache
def in_steps(text: str, *, steps_per_epoch: int, total_steps: int) -> int:
    """Convert a duration to optimizer steps, rounded to the nearest integer."""
    number, unit = parse_duration(text)
    return round(number * {"ep": steps_per_epoch, "ba": 1, "dur": total_steps}[unit])


_TARGET = re.compile(r"(?:(\w+):)?(-?\d{0,18}\.?\d{1,18})")


def target_parts(text: str) -> tuple[str | None, float]:
    """Split `top1:0.759` into ("top1", 0.759), and `0.759` into (None, 0.759).

    Raises ValueError if the text is no number, alone or after a name.
    """
    match = _TARGET.fullmatch(text.strip())
    if match is None:
        raise ValueError("must be the value to stop at, such as 0.759, or a metric with it, such as top1:0.759")
    return match[1], float(match[2])


def _number_as_text(value: Any) -> Any:
    return str(value) if type(value) in (int, float) else value


# note: a recipe's file has a number alone as a number
Target = Annotated[
    str, BeforeValidator(_number_as_text), AfterValidator(lambda text: text if target_parts(text) else "")
]


def _url(text: str) -> str:
    if "://" not in text:
        raise ValueError("must be a URL such as s3://mine/runs")
    return text


Url = Annotated[str, AfterValidator(_url)]


_HOST_AND_PORT = re.compile(r"(?:(?P<name>[^:\[\]]+)|\[(?P<ipv6>[^\[\]]+)\]):(?P<port>[0-9]{1,5})")


def host_and_port(text: str) -> tuple[str, int]:
    """Split `10.0.0.1:29400` into ("10.0.0.1", 29400), and `[fd00::1]:29400` into ("fd00::1", 29400).

    Raises ValueError if the text is not a host and a port.
    """
    match = _HOST_AND_PORT.fullmatch(text)
    if match is None or not 0 < int(match["port"]) < 65536:
        raise ValueError("must be HOST:PORT, such as 10.0.0.1:29400 or [fd00::1]:29400")
    return match["name"] or match["ipv6"], int(match["port"])


HostPort = Annotated[str, AfterValidator(lambda text: text if host_and_port(text) else "")]

_MOST_BYTES = 200
_HOME = re.compile(r"^\$HOME(?=/|$)")


def _folder_name(text: str) -> str:
    if "/" in text or text in ("", ".", ".."):
        raise ValueError("must be a folder name without /; set its parent as runs=FOLDER")
    if odd := next((character for character in text if not character.isprintable()), None):
        raise ValueError(f"has the character U+{ord(odd):04X}, which is not printable; remove it")
    if len(text.encode()) > _MOST_BYTES:
        raise ValueError(f"has {count_of(len(text.encode()), 'byte')}; shorten it to {_MOST_BYTES}")
    return text


def expanded(text: str) -> str:
    """Expand `~` or `$HOME` at the start of a path, since no shell does so in YAML."""
    if not text:
        raise ValueError("is empty; write a path")
    head, slash, rest = _HOME.sub("~", text, count=1).partition("/")
    if not head.startswith("~"):
        return text
    try:
        return f"{Path(head).expanduser()}{slash}{rest}"
    except RuntimeError:
        raise ValueError(f"{head} is not a home folder; write ./{head} for a path in the working directory") from None


# note: not a path, so that a recipe from elsewhere cannot choose where a run is written
FolderName = Annotated[str, AfterValidator(_folder_name)]
AnyPath = Annotated[str, AfterValidator(expanded)]


def is_on(value: str) -> bool:
    """Return whether a value of `compile` or `cuda_graphs` turns it on; `auto` does once it was replaced."""
    return value in ("on", "require")
