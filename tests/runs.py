"""Run `train` on a few small images, in this or another process, and inspect it from outside."""

import gc
import io
import itertools
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil

from launcher.config.tasks import TaskConfig
from launcher.errors import DONE, TERMINATED
from launcher.rank.signs import DEVICE, STOP
from launcher.records.metrics import read_metrics
from launcher.records.run_folder import RunFolder
from tests.commands import execute
from tests.forked import Command

SMALL = [
    *("recipe=mild", "epochs=3", "batch_size=16", "eval_batch_size=16", "schedule.warmup=1ep", "model=resnet18"),
    *("dataset=shapes", "dataset.train_samples=96", "dataset.val_samples=50", "dataset.native_size=32"),
    *("launch=cpu", "launch.nproc=1", "dataloader.workers=0", "logger.interval=1ba", "logger.tensorboard=false"),
    "algorithms.ema.update_interval=2ba",
]
# The words of an epoch on the same images, for recipes that choose the rest.
SHAPES = ["epochs=1", *(word for word in SMALL if word.startswith(("dataset", "model", "launch", "batch")))]
# The same on two ranks, with more checkpoints.
SHORT = [*SMALL, "launch.nproc=2", "checkpoint.every=4ba", "launch.hang_timeout=60"]
DECIDED = ("step", "model", "weights", "optimizer", "algorithms", "evaluated_step", "best", "best_step", "history")
# The environment variables of the only rank of a run.
ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", DEVICE: "cpu"}


def in_ranks(*before: Callable[[], object]) -> dict[str, str]:
    """Return environment variables that make ranks call these functions first."""
    root = Path(__file__).parents[1]
    path = os.pathsep.join([str(root / "tests" / "in_ranks"), str(root), os.environ.get("PYTHONPATH", "")])
    names = " ".join(f"{function.__module__}:{function.__qualname__}" for function in before)
    return {"PYTHONPATH": path, "TESTS_IN_RANKS": names}


def use_tiny() -> None:
    # note: importing torchvision takes longer than all other imports of pytest's first process
    from tests import networks

    networks.use_tiny()


def draw_nothing() -> None:
    """Disable the plot of the curve, which takes as long as the steps of a small run."""
    from launcher.records import learning_curve

    learning_curve.draw_curve = _undrawn


def _undrawn(folder: RunFolder, task: TaskConfig, title: str) -> Path:
    return folder.curve


@dataclass
class Train:
    """Run `train` in a separate folder; the words of `small` make a run of three epochs of six steps.

    Every network is a tiny one, unless a test requires torchvision's; no curve is drawn. `before` is called in the
    command and in each of its ranks, `around` only in the command: the ranks inherit its changes.
    """

    folder: Path
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    before: tuple[Callable[[], object], ...] = (use_tiny, draw_nothing)
    around: tuple[Callable[[], object], ...] = ()

    def start(self, *words: str, **streams: Any) -> Command | subprocess.Popen[str]:
        command, before = ["launcher", *words], (*self.around, *self.before)
        environment = {**self.environment, **in_ranks(*self.before)}
        return Command(command, self.folder, environment, before=before, **streams)

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

        state = checkpoint.newest_valid(run / "checkpoints")
        assert state is not None
        return state

    def decided(self, run: Path) -> dict[str, object]:
        """Return what the config determines: the checkpoint without the clocks."""
        state = self.state(run)
        return {key: state[key] for key in DECIDED}


class Cold(Train):
    """Run each command like a user, in a new interpreter and on the real network."""

    def start(self, *words: str, **streams: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "launcher", *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
        return subprocess.Popen(command, cwd=self.folder, env=self.environment, text=True, **pipes)


class Here(Train):
    """Run each command in this process, which is the only rank."""

    def __call__(self, *words: str, code: int = 0, stop_after: int | None = None) -> subprocess.CompletedProcess[str]:
        """Run one command; `stop_after` is the step in which the rank receives a stop request."""
        import torch

        from launcher.training.trainer import Trainer
        from tests import networks

        steps, count = itertools.count(1), Trainer.count

        def counted(*arguments: Any) -> None:
            STOP.requested = STOP.requested or next(steps) == stop_after
            count(*arguments)

        with ExitStack() as restored:
            # note: restore the state of the process
            restored.callback(gc.collect)
            restored.callback(os.chdir, Path.cwd())
            restored.callback(torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled())
            restored.enter_context(patch.dict(os.environ, self.environment))
            restored.enter_context(patch.object(STOP, "requested", False))
            restored.enter_context(patch.object(Trainer, "count", counted))
            restored.enter_context(patch("launcher.launch.elastic.Launcher", _InThisProcess))
            restored.enter_context(patch("launcher.records.learning_curve.draw_curve", _undrawn))
            restored.enter_context(patch("launcher.models.resnet.library_network", networks.tiny))
            os.chdir(self.folder)
            exit_code, output, errors = execute(*words)
        assert exit_code == code, f"{output}\n{errors}"
        return subprocess.CompletedProcess(words, code, output, errors)


def be_the_only_rank() -> None:
    """Run the only rank of each run in this process."""
    from launcher.launch import elastic

    elastic.Launcher = _InThisProcess  # type: ignore[assignment, misc]


class _InThisProcess:
    """Replacement of launcher.launch.elastic.Launcher that calls the target in this process."""

    def __init__(self, run_folder: Path, devices: Any, launch: Any, view: Any, target: str = "", **_: Any):
        assert devices.processes == 1
        self._run_folder, self._view, self._target = run_folder, view, target

    def run(self) -> int:
        import torch.distributed as dist

        from launcher.launch.elastic import WORKER

        output = io.StringIO()
        try:
            with patch.dict(os.environ, ALONE), redirect_stdout(output):
                pkgutil.resolve_name(self._target or WORKER)(self._run_folder)
        finally:
            for line in output.getvalue().splitlines():
                self._view.print(line)
            self._view.close()
            if dist.is_initialized():
                dist.destroy_process_group()
        return TERMINATED if STOP.requested else DONE


def ended(process: Command | subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    """Wait for a process, check its exit code, and return its output and errors."""
    output, errors = process.communicate(timeout=400)
    assert process.returncode == code, f"{output}\n{errors}"
    return output, errors


def same(first: object, second: object) -> bool:
    """Return whether two states are equal in types, order and bits; a NaN is equal to a NaN."""
    import torch

    if isinstance(first, torch.Tensor):
        return isinstance(second, torch.Tensor) and first.dtype == second.dtype and torch.equal(first, second)
    if isinstance(first, dict):
        return type(first) is type(second) and same(list(first.items()), list(second.items()))
    if isinstance(first, list | tuple):
        return type(first) is type(second) and len(first) == len(second) and all(map(same, first, second))
    return first == second or (first != first and second != second)


def slow_down() -> None:
    """Make each step and checkpoint take at least a tenth of a second."""
    from launcher.training import checkpoint
    from launcher.training.trainer import Trainer

    for owner, name in ((checkpoint, "_write"), (Trainer, "count")):
        setattr(owner, name, _slow(getattr(owner, name)))


def _slow(function: Callable[..., None]) -> Callable[..., None]:
    def slowly(*arguments: Any) -> None:
        function(*arguments)
        time.sleep(0.1)

    return slowly


def wait_for(condition: Callable[[], bool], seconds: float = 240, interval: float = 0.05) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(interval)


def steps_done(run: Path) -> int:
    return max((row["step"] for row in read_metrics(run / "metrics.jsonl")), default=0)


def results(run: Path) -> list[tuple[object, ...]]:
    """Return the records of steps, epochs and evaluations without times."""
    keys = ("kind", "step", "loss", "metrics", "samples", "lr", "view")
    rows = read_metrics(run / "metrics.jsonl")
    return [tuple(row.get(key) for key in keys) for row in rows if row["kind"] in ("train", "eval", "epoch")]


def resumed_after_kill(train: Train, words: Sequence[str], step: int, later: float = 0.0) -> Path:
    """Return a run whose processes were all killed some seconds after a step, and that resumed."""
    run = train.folder / "runs" / "killed"
    shutil.rmtree(run, ignore_errors=True)
    process = replace(train, before=(draw_nothing, slow_down)).start(*words, "run_name=killed")
    # note: a command that is refused fails below, with its output
    wait_for(lambda: process.poll() is not None or steps_done(run) >= step)
    time.sleep(later)
    kill_all(process, run)
    assert not any(row["kind"] == "end" for row in read_metrics(run / "metrics.jsonl"))
    train("resume", str(run))
    return run


def kill_all(process: Command, run: Path) -> None:
    """Kill the command and all processes of its run, and wait for its end."""
    process.kill()
    for one in processes_of(run):
        with suppress(psutil.Error):
            if one.pid != os.getpid():
                one.kill()
    ended(process, -9)


def processes_of(run: Path) -> list[psutil.Process]:
    """Return the processes with the working directory of the run: ranks, loader workers, and others."""
    processes = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if Path(process.cwd()) == run.parents[1] and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
    return processes


def ranks_of(run: Path) -> dict[int, psutil.Process]:
    """Return the ranks by number: each writes its log and leads its process group, unlike its children."""
    ranks = {}
    for process in processes_of(run):
        with suppress(OSError):
            log = re.fullmatch(r"rank-(\d+)\.log", Path(f"/proc/{process.pid}/fd/1").readlink().name)
            if log and os.getpgid(process.pid) == process.pid:
                ranks[int(log[1])] = process
    return ranks


def loader_workers_of(run: Path) -> list[psutil.Process]:
    """Return the loader workers, which the fork server of a rank starts."""
    ranks = {rank.pid for rank in ranks_of(run).values()}
    of_ranks = {process.pid for process in processes_of(run) if process.ppid() in ranks}
    return [process for process in processes_of(run) if process.ppid() in of_ranks]
