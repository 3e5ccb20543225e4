"""A rank's first lines: the process from which its loader workers are forked imports torch while the rank does."""

from __future__ import annotations

from pathlib import Path

from launcher.config.resolved import read
from launcher.config.schema import TorchvisionLoader
from launcher.data.following import start_server
from launcher.records.folder import RunFolder


def work(run_folder: Path) -> None:
    """The life of a run on one rank, `launcher.training.worker.work`."""
    loader = read(RunFolder(run_folder).config).dataloader
    if isinstance(loader, TorchvisionLoader) and loader.workers != 0:
        start_server()
    from launcher.training.worker import work as train

    train(run_folder)
