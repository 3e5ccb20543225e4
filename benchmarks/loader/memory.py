"""Measure the memory of loaders; `python -m benchmarks.loader.memory KEY=VALUE...` prints the peak of one in bytes.

Memory is the proportional set size of the process and its children, so shared pages count once.
"""

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
class PeakMemory:
    """Peak bytes of a process that loads with five workers, and bytes per additional worker."""

    loader: str
    whole: int
    worker: float


def measure(folder: Path, batch_size: int) -> list[PeakMemory]:
    """Load two epochs of a folder with each loader and number of workers, each in its own process."""
    words = ["dataset=image_folder", f"dataset.path={folder}", f"batch_size={batch_size}"]
    peaks = []
    for name, loader in _LOADERS.items():
        few, many = (_peak_of([*loader, *words, f"dataloader.workers={workers}"]) for workers in (_FEW, _MANY))
        peaks.append(PeakMemory(name, many, (many - few) / (_MANY - _FEW)))
    return peaks


def table(peaks: list[PeakMemory]) -> Table:
    """Return memory, and ratios to the first loader."""
    shown = Table("loader", "MB per worker", "ratio", f"MB with {_MANY} workers", "ratio", box=None)
    for peak in peaks:
        shown.add_row(
            peak.loader, f"{peak.worker / 1e6:,.1f}", f"{peak.worker / peaks[0].worker:.2f}",
            f"{peak.whole / 1e6:,.0f}", f"{peak.whole / peaks[0].whole:.2f}",
        )  # fmt: skip
    return shown


def _peak_of(words: Sequence[str]) -> int:
    command = [sys.executable, "-m", "benchmarks.loader.memory", *words]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1])


def _load(words: Sequence[str]) -> int:
    """Return the peak bytes while two epochs are loaded."""
    import torch

    from launcher.config.compose import compose
    from launcher.data.inspection import inspect_data
    from launcher.data.loading import build_loaders
    from launcher.plan.plan import Plan
    from launcher.rank.group import single_rank

    torch.set_num_threads(1)
    config = inspect_data(compose(["recipe=mild", *words]).config, must_exist=True).config
    assert config.dataset.train_samples is not None
    loaders = build_loaders(Plan(config, 1, config.dataset.train_samples), single_rank(torch.device("cpu")))
    peak, ended = 0, threading.Event()

    def sample() -> None:
        nonlocal peak
        while not ended.wait(_SECONDS):
            peak = max(peak, _proportional())

    watch = threading.Thread(target=sample)
    watch.start()
    for epoch in range(2):
        for _ in loaders.train.epoch(epoch):
            # note: as long as a step, so that the loader fills its queue
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
