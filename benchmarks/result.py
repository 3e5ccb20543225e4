"""The throughput of a contender."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """Images/s of one contender at one image size in pixels: median, minimum and maximum over the repeats."""

    contender: str
    size: int
    median: float
    minimum: float
    maximum: float
