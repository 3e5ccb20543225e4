"""Durations as the field writes them: `8ep` epochs, `100ba` batches (optimizer steps), `0.5dur` of the whole run."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

_PATTERN = re.compile(r"([0-9]{1,18}(?:\.[0-9]*)?|\.[0-9]+)(ep|ba|dur)")


def parse_duration(text: str) -> tuple[float, str]:
    """Split `8ep` into (8.0, "ep").

    Raises:
        ValueError: the text is no number followed by ep, ba or dur.
    """
    match = _PATTERN.fullmatch(text.strip())
    if match is None:
        raise ValueError("not a duration: write epochs as 8ep, batches as 100ba, a part of the run as 0.5dur")
    return float(match[1]), match[2]


def _check(text: str) -> str:
    parse_duration(text)
    return text


Duration = Annotated[str, AfterValidator(_check)]


def in_steps(text: str, *, steps_per_epoch: int, total_steps: int) -> int:
    """Length of a duration in optimizer steps, rounded to the nearest whole one."""
    number, unit = parse_duration(text)
    return round(number * {"ep": steps_per_epoch, "ba": 1, "dur": total_steps}[unit])
