"""What makes a rank slow, and makes runs find it soon."""

import os
import time

import torch

from launcher.data.sources.pieces import Piece


def shorter_intervals() -> None:
    from launcher.training import rank_times

    rank_times.LEAST_SECONDS = 0.5


def slow_folder_of_rank_1() -> None:
    """Make each image of rank 1 take 20 ms to read, as from a slow folder."""
    _slow_folder("1")


def slow_folder() -> None:
    """Make each image take 20 ms to read."""
    _slow_folder("01")


def _slow_folder(ranks: str) -> None:
    from launcher.data.sources import reading

    bytes_of = reading._bytes

    def slowly(piece: Piece) -> tuple[bytes, int]:
        if os.environ.get("RANK", "none") in ranks:
            time.sleep(0.02)
        return bytes_of(piece)

    reading._bytes = slowly


def busy_disk() -> None:
    """Make the disks read 50 MB/s."""
    from launcher.training import rank_times

    rank_times._bytes_read = lambda: int(5e7 * time.perf_counter())


def use_known_of_rank_1() -> None:
    """Make the use of the device of rank 1 alone known."""
    from launcher.training import meters, metric_logger

    def known(device: torch.device) -> float | None:
        return 40.0 if os.environ.get("RANK") == "1" else None

    meters.use = metric_logger.use = known  # type: ignore[attr-defined]
