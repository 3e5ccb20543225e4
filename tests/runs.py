"""The real `train` command in processes, on a few small pictures, and what one sees of them from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from launcher.records.metrics import read_metrics

SMALL = [
    *("recipe=mild", "epochs=3", "batch_size=16", "eval_batch_size=16", "schedule.warmup=1ep", "model=resnet18"),
    *("dataset=shapes", "dataset.train_samples=96", "dataset.val_samples=50", "dataset.native_size=32"),
    *("launch=cpu", "launch.nproc=2", "dataloader.workers=1", "logger.interval=1ba", "logger.tensorboard=false"),
    "algorithms.ema.update_interval=2ba",
]
# The same, saved more often.
SHORT = [*SMALL, "checkpoint.every=4ba", "launch.hang_timeout=60"]
Equal = Callable[[object, object], bool]


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

    def start(self, *words: str, stdout: Any = subprocess.PIPE) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "launcher.cli.main", *words]
        return subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stdout=stdout, stderr=subprocess.PIPE, text=True
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
        from launcher.training import checkpoint

        found = checkpoint.newest_valid(run / "checkpoints")
        assert found is not None
        return found


def wait_for(condition: Callable[[], bool], seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def steps_done(run: Path) -> int:
    return max((row["step"] for row in read_metrics(run / "metrics.jsonl")), default=0)


def processes_of(run: Path) -> list[psutil.Process]:
    """Processes that work in the run's folder: ranks, their loader workers, and whatever else they started."""
    found = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()) == run.parents[1] and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def ranks_of(run: Path) -> dict[int, psutil.Process]:
    """The ranks by number: each leads its process group, which the guardian that it forks does not."""
    found = {}
    for process in processes_of(run):
        with suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == process.pid and "launcher.rank.main" in process.cmdline():
                found[int(process.environ()["RANK"])] = process
    return found


def loader_workers_of(run: Path) -> list[psutil.Process]:
    """Loader workers, which a server forks that is itself a child of a rank."""
    ranks = {rank.pid for rank in ranks_of(run).values()}
    of_ranks = [process for process in processes_of(run) if process.ppid() in ranks]
    servers = {p.pid for p in of_ranks if "multiprocessing.forkserver" in str(p.cmdline())}
    return [process for process in processes_of(run) if process.ppid() in servers]
