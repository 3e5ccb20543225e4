"""Ctrl-C, once or twice, in each phase of a run: one line, no process left, nothing half-written, the same bits."""

import importlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.runs import SHORT, Train, processes_of, ranks_of, same, steps_done, wait_for

pytestmark = pytest.mark.system

# What a rank calls in each phase.
PHASES = {
    "rehearsal": "launcher.training.worker:rehearse_run",
    "step": "launcher.training.trainer:Trainer.count",
    "evaluation": "launcher.training.trainer:Trainer.evaluate",
    "checkpoint": "launcher.training.checkpoint:_write",
    "mirror": "launcher.records.mirror:Mirror.push",
    "end": "launcher.training.metric_logger:MetricLogger.log_end",
    "restart": "launcher.training.worker:newest_on_all_ranks",
}
_SECONDS = 1.5


def pause() -> None:
    """Make each phase leave a file and take longer, if TESTS_PHASE names it, in each rank."""
    for phase, path in PHASES.items():
        module, _, name = path.partition(":")
        owner: Any = importlib.import_module(module)
        *inner, function = name.split(".")
        for part in inner:
            owner = getattr(owner, part)
        setattr(owner, function, _paused(phase, getattr(owner, function)))


def _paused(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def slowly(*arguments: Any, **named: Any) -> Any:
        # note: the environment of the command is set after this function is wrapped
        if os.environ.get("TESTS_PHASE") == phase:
            Path(os.environ["TESTS_PHASE_FILE"]).touch()
            time.sleep(_SECONDS)
        return function(*arguments, **named)

    return slowly


def interrupt(train: Train, phase: str, times: int) -> tuple[int | None, str, str, Path]:
    """Start a run, press Ctrl-C in a phase, and return its exit code, output, errors and folder."""
    file, run = train.folder / "phase", train.folder / "runs" / "run"
    train.environment |= {"TESTS_PHASE": phase, "TESTS_PHASE_FILE": str(file)}
    words = [f"checkpoint.mirror=file://{train.folder}/mirror"] if phase == "mirror" else []
    process = replace(train, before=(*train.before, pause)).start(*SHORT, "run_name=run", *words)
    if phase == "restart":
        wait_for(lambda: steps_done(run) > 4)
        file.unlink()
        ranks_of(run)[1].kill()
    wait_for(file.exists, 120)
    for _ in range(times):
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
    output, errors = process.communicate(timeout=240)
    return process.returncode, output, errors, run


# The command that the last line has; a finished run needs none.
RESUME, AGAIN = "type: train resume runs/run", "to start again, type the same command"


@pytest.mark.parametrize(
    ("phase", "times", "line"),
    [
        ("rehearsal", 1, AGAIN),
        ("step", 2, RESUME),
        ("evaluation", 1, RESUME),
        pytest.param("checkpoint", 1, RESUME, marks=pytest.mark.skeleton),
        ("checkpoint", 2, RESUME),
        ("mirror", 1, RESUME),
        ("end", 1, None),
        ("restart", 1, RESUME),
    ],
)
def test_ctrl_c_ends_a_run_that_resumes_to_the_same_bits(
    train: Train, uninterrupted: Path, phase: str, times: int, line: str | None
) -> None:
    code, output, errors, run = interrupt(train, phase, times)
    assert (code, errors) == (130 if line else 0, "")
    assert line is None or output.splitlines()[-1].endswith(line)
    wait_for(lambda: not processes_of(run), 10)
    assert run.exists() == (line != AGAIN)
    if line == RESUME:
        train("resume", "runs/run")
    if run.exists():
        assert same(train.decided(run), train.decided(uninterrupted))
        assert not list(run.rglob(".*.tmp"))
