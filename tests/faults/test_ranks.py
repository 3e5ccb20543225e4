"""Ranks that are killed, stopped or fail, and go on to the weights of an uninterrupted run."""

from __future__ import annotations

import random
import shutil
import signal
from pathlib import Path

import pytest

from launcher.records.folder import saves
from tests.runs import SHORT, Equal, Here, Train, processes_of, ranks_of, results, steps_done, wait_for

from .killing import kill_over_and_over

pytestmark = pytest.mark.system


def assert_same_end(train: Train, run: Path, whole: Path, equal: Equal) -> None:
    assert equal(train.decided(run), train.decided(whole))
    assert not processes_of(run)


def test_a_rank_that_stands_still_is_made_good_by_a_restart(train: Train, whole: Path, equal: Equal) -> None:
    process = train.start(*SHORT, "run_name=lost", "launch.hang_timeout=8")
    run = train.folder / "runs" / "lost"
    wait_for(lambda: steps_done(run) >= 9)
    ranks_of(run)[1].send_signal(signal.SIGSTOP)
    output, errors = process.communicate(timeout=400)
    assert process.returncode == 0, errors
    assert "starting again from the last save (1 of 3)" in output
    assert "rank 1 was stopped (SIGSTOP)" in output
    assert_same_end(train, run, whole, equal)


def test_three_ranks_start_again_to_the_same_bits(train: Train, equal: Equal) -> None:
    # note: sums of three and more depend on their order
    words = [*SHORT, "launch.nproc=3", "batch_size=24", "eval_batch_size=24", "epochs=2", "eval_every=2ep"]
    train(*words, "run_name=whole")
    process = train.start(*words, "run_name=lost")
    run = train.folder / "runs" / "lost"
    wait_for(lambda: steps_done(run) >= 5)
    ranks_of(run)[2].kill()
    output, errors = process.communicate(timeout=400)
    assert process.returncode == 0, errors
    assert "starting again from the last save (1 of 3)" in output
    assert "SIGSTOP" not in output
    assert_same_end(train, run, run.with_name("whole"), equal)


@pytest.mark.timeout(1200)
def test_a_run_killed_twenty_times_ends_with_the_same_bits(train: Train, equal: Equal) -> None:
    words = [*SHORT, "epochs=16", "checkpoint.every=2ba", "eval_every=4ep", "batch_size=8", "dataset.train_samples=48"]
    train(*words, "run_name=whole")
    run, kills = kill_over_and_over(train, words, 20, random.Random(7))
    assert len(kills.steps) == 20
    assert kills.in_a_save, "a killed save leaves its temporary file"
    train("resume", str(run))
    assert_same_end(train, run, run.with_name("whole"), equal)


def test_a_stopped_run_goes_on_to_the_same_bits_past_a_damaged_save_and_with_other_values(
    train: Train, here: Here, whole: Path, equal: Equal
) -> None:
    process = train.start(*SHORT, "run_name=parts")
    run = train.folder / "runs" / "parts"
    wait_for(lambda: steps_done(run) >= 9)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=240)
    assert process.returncode == 143
    assert 9 <= train.state(run)["step"] < 18  # type: ignore[operator]
    other = Path(shutil.copytree(run, run.with_name("other")))

    _, newest = saves(run / "checkpoints", "step")[-1]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    finished = train("resume", str(run))
    assert f"checkpoint={newest}: is damaged" in finished.stdout
    assert_same_end(train, run, whole, equal)
    assert results(run) == results(whole)

    refused = here("resume", str(other), "optimizer.lr=1", "seed=3", "launch.nproc=1", code=2)
    assert [line.split(":")[1].split("=")[0].strip() for line in refused.stderr.splitlines()] == [
        "seed",
        "optimizer.lr",
    ]
    assert "would change what the run has done" in refused.stderr
    assert "epochs=1" in here("resume", str(other), "epochs=1", code=2).stderr
    one = here("resume", str(other), "launch.nproc=1")
    assert "the run had 2 processes and goes on with 1" in " ".join(one.stdout.split())
    assert train.state(other)["step"] == 18
