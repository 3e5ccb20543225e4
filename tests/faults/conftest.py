"""Real runs of the real command, broken in all the ways that clouds know."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.conftest import Train, cache, equal, train

__all__ = ["cache", "equal", "train"]

SHORT = [
    *("recipe=mild", "epochs=3", "batch_size=16", "eval_batch_size=16", "schedule.warmup=1ep", "model=resnet18"),
    *("dataset=shapes", "dataset.train_samples=96", "dataset.val_samples=50", "dataset.native_size=32"),
    *("launch=cpu", "launch.nproc=2", "dataloader.workers=1", "logger.interval=1ba", "logger.tensorboard=false"),
    *("algorithms.ema.update_interval=2ba", "checkpoint.every=4ba", "launch.hang_timeout=60"),
]


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> dict[str, object]:
    """What an uninterrupted run of SHORT leaves: its newest state."""
    made = Train.at(tmp_path_factory.mktemp("whole"), cache)
    made(*SHORT, "run_name=whole")
    return made.state(made.folder / "runs" / "whole")
