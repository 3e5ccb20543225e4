"""Grids of runs that train in this process, or in forks."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.errors import UserError
from launcher.launch import start
from launcher_lab.cli import grid, training
from tests.forked import Command
from tests.runs import draw_nothing, slow_down, use_tiny


def train_by(train: Callable[[list[str]], int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Train each run of a grid by a function instead of a process."""

    def started(cell: grid.Cell, part: training.MachinePart, words: list[str], **_: bool) -> training._Started:
        code = train(words)
        return training._Started(cell, part, SimpleNamespace(poll=lambda: code, returncode=code), None)  # type: ignore[arg-type]

    monkeypatch.setattr(training, "_started", started)


def refuse(*_: object, **__: object) -> None:
    raise UserError("the disk is full")


def refuse_to_start() -> None:
    start.start = refuse  # type: ignore[assignment]


def have_two_cores() -> None:
    training.usable_cores = lambda: 2


def fork_runs() -> None:
    """Start the runs of a grid as forks, in place of new interpreters; those of seed 7 fail."""

    def fork(words: list[str], stdout: Any, stderr: Any, env: dict[str, str], **_: object) -> Command:
        streams = (1 if stdout is None else stdout, 2 if stderr is None else stderr)
        before = (use_tiny, draw_nothing, slow_down, *([refuse_to_start] if "seed=7" in words else []))
        return Command(words[2:], Path.cwd(), env, *streams, before=before)

    training.subprocess = SimpleNamespace(Popen=fork, DEVNULL=subprocess.DEVNULL)  # type: ignore[assignment]
