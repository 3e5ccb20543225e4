"""A run with `stop.minutes` that is killed at any point ends with the bits of a whole one of the same epochs."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.config.resolved import read
from launcher.records.run_folder import RunFolder
from tests.runs import SMALL, Train, ended, kill_all, processes_of, results, same, wait_for

pytestmark = pytest.mark.system

WORDS = [*SMALL, "batch_size=12", "eval_every=1ep", "checkpoint.every=12ba", "launch.max_restarts=0"]
# Two of the three epochs fit.
TIMED = [*WORDS, "stop.minutes=11", "run_name=killed"]


def take_five_minutes_an_epoch() -> None:
    from launcher.measure import launch
    from launcher.measure.estimate import Estimate, Measurement, Span
    from launcher.plan.plan import Plan

    inner = launch.estimate

    def estimate(plan: Plan, measured: Measurement) -> Estimate:
        training, rest = Span(*[300.0 * plan.epochs] * 3), Span(1.0, 1.0, 1.0)
        return replace(inner(plan, measured), training=training, evaluation=rest, saving=rest)

    launch.estimate, launch._MOST_SECONDS = estimate, 0.04


def die(*_: object, **__: object) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def die_once_the_epochs_are_fixed() -> None:
    from launcher.launch import prepare

    prepare._in_time = die


def die_before_the_config_is_written() -> None:
    from launcher.launch import start

    start.write = die


def die_at(method: str, call: int) -> None:
    """Kill the last rank at a call of a method of its trainer."""
    from launcher.training.trainer import Trainer

    inner, calls = getattr(Trainer, method), 0

    def called(trainer: Trainer, *arguments: Any, **named: Any) -> Any:
        nonlocal calls
        # note: a measurement evaluates before a step
        calls += trainer.next_step > 0
        ranks = trainer.ranks
        Path(trainer.config.runs, f"epochs-{ranks.rank}").write_text(str(trainer.plan.epochs))
        if calls == call and ranks.rank == ranks.world_size - 1:
            die()
        return inner(trainer, *arguments, **named)

    setattr(Trainer, method, called)


def die_in_an_evaluation() -> None:
    die_at("evaluate", 2)


def die_in_a_step() -> None:
    die_at("count", 2)


def killed_while_measuring(train: Train, run: Path, ranks: str) -> None:
    process = train.start(*TIMED, ranks)
    logs = f".measuring-*/logs/rank-{int(ranks[-1]) - 1}.log"
    wait_for(lambda: any(run.parent.glob(logs)), interval=0.005)
    kill_all(process, run)  # type: ignore[arg-type]
    assert not run.exists()


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_timed_run_that_was_killed_has_the_bits_of_a_whole_one(train: Train, ranks: int) -> None:
    run, on_ranks = train.folder / "runs" / "killed", f"launch.nproc={ranks}"
    train = replace(train, around=(take_five_minutes_an_epoch,))

    def killed(*words: str, code: int, around: Callable[[], None] | None = None, rank: Any = None) -> str:
        before = (*train.before, *([rank] if rank else []))
        one = replace(train, before=before, around=(*train.around, *([around] if around else [])))
        output = ended(one.start(*words), code)
        wait_for(lambda: not processes_of(run))
        return "".join(output)

    if ranks == 2:
        killed_while_measuring(train, run, on_ranks)
        killed(*TIMED, on_ranks, code=-9, around=die_once_the_epochs_are_fixed)
        killed(*TIMED, on_ranks, code=-9, around=die_before_the_config_is_written)
        assert not RunFolder(run).config.exists()
    output = killed(*TIMED, on_ranks, code=1, rank=die_in_an_evaluation)
    assert RunFolder(run).config.exists(), output
    fixed = read(RunFolder(run).config).schedule.dilate
    assert fixed == pytest.approx(2 / 3, abs=1e-5)
    assert {(run.parent / f"epochs-{rank}").read_text() for rank in range(ranks)} == {"2"}
    killed("resume", str(run), code=1, rank=die_in_a_step)
    train("resume", str(run))
    assert read(RunFolder(run).config).schedule.dilate == fixed
    whole = train.folder / "runs" / "whole"
    train(*WORDS, on_ranks, f"schedule.dilate={fixed}", "run_name=whole")
    assert same(train.decided(run), train.decided(whole))
    assert all(row in results(run) for row in results(whole))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stop_while_steps_are_measured_is_no_error(train: Train, number: signal.Signals, code: int) -> None:
    runs = train.folder / "runs"
    process = train.start(*TIMED, "launch.nproc=2")
    wait_for(lambda: any(runs.glob(".measuring-*/logs/rank-1.log")), interval=0.005)
    os.kill(process.pid, number)
    output, errors = ended(process, code)
    assert errors.endswith(f"stopped by {number.name}\n")
    assert "error" not in errors
    assert "with a checkpoint" not in output + errors
    assert list(runs.iterdir()) == []
