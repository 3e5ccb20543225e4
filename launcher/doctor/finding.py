"""What one look at the machine found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """One line of `train doctor`: a warning costs time or money, a problem keeps the run from working.

    `advice` says what to do, and is empty where nothing is to be done.
    """

    name: str
    status: Status
    found: str
    advice: str = ""


def ok(name: str, found: str) -> Finding:
    return Finding(name, "ok", found)


def warning(name: str, found: str, advice: str) -> Finding:
    return Finding(name, "warning", found, advice)


def problem(name: str, found: str, advice: str) -> Finding:
    return Finding(name, "problem", found, advice)


def size(number: float) -> str:
    """Bytes for a reader: `1.5 GB`."""
    for unit, power in (("TB", 12), ("GB", 9), ("MB", 6)):
        if number >= 10**power:
            return f"{number / 10**power:.1f} {unit}"
    return f"{number / 1000:.0f} kB"
