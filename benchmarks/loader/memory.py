"""What loaders need in memory: `python -m benchmarks.loader.memory WORD...` prints the peak of a loader in bytes.

Proportional set sizes of the process and all it has started: pages that processes share count once.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from rich.table import Table

_SECONDS = 0.1
_FEW, _MANY = 1, 5
_LOADERS = {
    "dataloader=torchvision": ["dataloader=torchvision"],
    "dataloader=ffcv": ["dataloader=ffcv"],
}


@dataclass(frozen=True)
class Need:
    """Peak bytes of a process that loads with five workers, and what a worker more or less makes of it."""

    loader: str
    whole: int
    worker: float


def measure(folder: Path, batch_size: int) -> list[Need]:
    """Two epochs of the data set of a folder, each loader and number of workers in a process of its own."""
    words = ["dataset=image_folder", f"dataset.path={folder}", f"batch_size={batch_size}"]
    found = []
    for name, loader in _LOADERS.items():
        few, many = (_peak_of([*loader, *words, f"dataloader.workers={workers}"]) for workers in (_FEW, _MANY))
        found.append(Need(name, many, (many - few) / (_MANY - _FEW)))
    return found


def table(needs: list[Need]) -> Table:
    """As ratios to the first."""
    shown = Table("loader", "MB a worker", "ratio", f"MB in all, {_MANY} workers", "ratio", box=None)
    for need in needs:
        shown.add_row(
            need.loader, f"{need.worker / 1e6:,.1f}", f"{need.worker / needs[0].worker:.2f}",
            f"{need.whole / 1e6:,.0f}", f"{need.whole / needs[0].whole:.2f}",
        )  # fmt: skip
    return shown


def _peak_of(words: Sequence[str]) -> int:
    command = [sys.executable, "-m", "benchmarks.loader.memory", *words]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1])


def _load(words: Sequence[str]) -> int:
    """Peak bytes while two epochs are loaded."""
    import torch

    from launcher.config.compose import compose
    from launcher.data.inspection import inspect_data
    from launcher.data.loaders import build_loaders
    from launcher.plan.plan import Plan
    from launcher.rank.group import alone

    torch.set_num_threads(1)
    config = inspect_data(compose(["recipe=mild", *words]).config, must_exist=True).config
    assert config.dataset.train_samples is not None
    loaders = build_loaders(Plan(config, 1, config.dataset.train_samples), alone(torch.device("cpu")))
    peak, ended = 0, threading.Event()

    def sample() -> None:
        nonlocal peak
        while not ended.wait(_SECONDS):
            peak = max(peak, _proportional())

    watch = threading.Thread(target=sample)
    watch.start()
    for epoch in range(2):
        for _ in loaders.train.epoch(epoch):
            # note: as a step would, so that the loader gets ahead as far as it may
            time.sleep(_SECONDS)
    ended.set()
    watch.join()
    loaders.close()
    return peak


def _proportional() -> int:
    process, total = psutil.Process(), 0
    for one in (process, *process.children(recursive=True)):
        with suppress(psutil.Error):
            total += one.memory_full_info().pss
    return total


if __name__ == "__main__":
    print(_load(sys.argv[1:]))
