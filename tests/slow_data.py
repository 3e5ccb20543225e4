"""What makes data slow, and makes runs find it soon."""

import os
import time

import torch

from launcher.data.index import Piece


def shorter_intervals() -> None:
    from launcher.training import data_waits

    data_waits.LEAST_SECONDS = 0.5


def slow_folder() -> None:
    """Make each image take 20 ms to read."""
    from launcher.data.sources import reading

    bytes_of = reading._bytes

    def slowly(piece: Piece) -> tuple[bytes, int]:
        time.sleep(0.02)
        return bytes_of(piece)

    reading._bytes = slowly


def use_known_of_rank_1() -> None:
    """Make the use of the device of rank 1 alone known."""
    from launcher.training import meters, metric_logger

    def known(device: torch.device) -> float | None:
        return 40.0 if os.environ.get("RANK") == "1" else None

    meters.use = metric_logger.use = known  # type: ignore[attr-defined]
