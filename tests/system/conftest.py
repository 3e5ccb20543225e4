"""The real `train` command in processes, on a few small pictures."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from launcher.training import checkpoint

SMALL = [
    *("recipe=mild", "epochs=3", "batch_size=16", "eval_batch_size=16", "schedule.warmup=1ep", "model=resnet18"),
    *("dataset=shapes", "dataset.train_samples=96", "dataset.val_samples=50", "dataset.native_size=32"),
    *("launch=cpu", "launch.nproc=2", "dataloader.workers=1", "logger.interval=1ba", "logger.tensorboard=false"),
    "algorithms.ema.update_interval=2ba",
]


@dataclass
class Train:
    """Runs `train` in a folder of its own; `small` words make a run of three epochs of six steps on two ranks."""

    folder: Path
    environment: dict[str, str]

    @classmethod
    def at(cls, folder: Path, cache: Path) -> Train:
        environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        return cls(folder, environment)

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "launcher.cli.main", *words]
        return subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def __call__(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        process = self.start(*words)
        output, errors = process.communicate(timeout=900)
        assert process.returncode == code, f"{output}\n{errors}"
        assert "Traceback" not in errors or code == 1
        return subprocess.CompletedProcess(words, code, output, errors)

    def small(self, name: str, *words: str) -> Path:
        self(*SMALL, f"run_name={name}", *words)
        return self.folder / "runs" / name

    def state(self, run: Path) -> dict[str, object]:
        found = checkpoint.newest_valid(run / "checkpoints", on_damaged=lambda error: None)
        assert found is not None
        return found[1]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def train(tmp_path: Path, cache: Path) -> Train:
    return Train.at(tmp_path, cache)


@pytest.fixture(scope="session")
def equal() -> Callable[[object, object], bool]:
    import torch

    def same(first: object, second: object) -> bool:
        if isinstance(first, torch.Tensor):
            return isinstance(second, torch.Tensor) and torch.equal(first, second)
        if isinstance(first, dict):
            return (
                isinstance(second, dict)
                and first.keys() == second.keys()
                and all(same(first[k], second[k]) for k in first)
            )
        if isinstance(first, list | tuple):
            return len(first) == len(second) and all(map(same, first, second))  # type: ignore[arg-type]
        return first == second

    return same
