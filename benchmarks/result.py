"""What a contender reaches."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """Images a second of one contender at one side in pixels: median, least and most over the repeats."""

    contender: str
    size: int
    median: float
    least: float
    most: float
