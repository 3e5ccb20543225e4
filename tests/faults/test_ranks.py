"""Ranks that are killed, stopped or fail, and go on to the weights of an uninterrupted run."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from tests.runs import SHORT, Equal, Train, processes_of, ranks_of, steps_done, wait_for

from .killing import kill_over_and_over

pytestmark = pytest.mark.system

DECIDED = ("step", "model", "weights", "optimizer", "algorithms", "evaluated_step", "best_top1", "best_step")


def assert_same_end(train: Train, run: Path, whole: dict[str, object], equal: Equal) -> None:
    state = train.state(run)
    for key in DECIDED:
        assert equal(state[key], whole[key]), key
    assert not processes_of(run)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_lost_is_made_good_by_a_restart(
    train: Train, whole: dict[str, object], equal: Equal, number: signal.Signals
) -> None:
    process = train.start(*SHORT, "run_name=lost", "launch.hang_timeout=8")
    run = train.folder / "runs" / "lost"
    wait_for(lambda: steps_done(run) >= 9)
    ranks_of(run)[1].send_signal(number)
    output, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    assert "starting again from the last save (1 of 3)" in output
    assert ("rank 1 was stopped (SIGSTOP)" in output) == (number == signal.SIGSTOP)
    assert_same_end(train, run, whole, equal)


def test_four_ranks_start_again_to_the_same_bits(train: Train, equal: Equal) -> None:
    # note: sums of three and more depend on their order
    words = [*SHORT, "launch.nproc=4", "epochs=2", "eval_every=2ep"]
    train(*words, "run_name=whole")
    process = train.start(*words, "run_name=lost")
    run = train.folder / "runs" / "lost"
    wait_for(lambda: steps_done(run) >= 5)
    ranks_of(run)[3].kill()
    output, errors = process.communicate(timeout=400)
    assert process.returncode == 0, errors
    assert "starting again from the last save (1 of 3)" in output
    assert_same_end(train, run, train.state(train.folder / "runs" / "whole"), equal)


@pytest.mark.timeout(1200)
def test_a_run_killed_twenty_times_ends_with_the_same_bits(train: Train, equal: Equal) -> None:
    words = [*SHORT, "epochs=16", "checkpoint.every=2ba", "eval_every=4ep"]
    train(*words, "run_name=whole")
    run, kills = kill_over_and_over(train, words, 20, random.Random(7))
    assert len(kills.steps) == 20
    assert kills.in_a_save, "a killed save leaves its temporary file"
    train("resume", str(run))
    assert_same_end(train, run, train.state(train.folder / "runs" / "whole"), equal)


def test_a_damaged_save_is_named_and_the_one_before_it_used(
    train: Train, whole: dict[str, object], equal: Equal
) -> None:
    train(*SHORT, "run_name=damaged")
    run = train.folder / "runs" / "damaged"
    newest = run / "checkpoints" / "step-00000018.pt"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    finished = train("resume", str(run))
    assert f"checkpoint={newest}: is damaged" in finished.stdout
    assert_same_end(train, run, whole, equal)


def test_resuming_with_other_values(train: Train) -> None:
    process = train.start(*SHORT, "run_name=other")
    run = train.folder / "runs" / "other"
    wait_for(lambda: steps_done(run) >= 9)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=240)
    assert process.returncode == 143
    refused = train("resume", str(run), "optimizer.lr=1", "seed=3", "launch.nproc=1", code=2)
    assert [line.split(":")[1].split("=")[0].strip() for line in refused.stderr.splitlines()] == [
        "seed",
        "optimizer.lr",
    ]
    assert "would change what the run has done" in refused.stderr
    assert "epochs=1" in train("resume", str(run), "epochs=1", code=2).stderr
    one = train("resume", str(run), "launch.nproc=1")
    assert "the run had 2 processes and goes on with 1" in " ".join(one.stdout.split())
    assert train.state(run)["step"] == 18
