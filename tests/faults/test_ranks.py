"""Ranks that are killed, stopped or fail resume to the weights of an uninterrupted run."""

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import cycle, islice, product
from pathlib import Path
from subprocess import Popen
from typing import Literal

import pytest

from launcher.rank.main import is_alive
from launcher.records.run_folder import checkpoint_files
from tests import patience
from tests.forked import Command
from tests.runs import SHORT, Here, Train, ended, processes_of, ranks_of, results, same, steps_done, wait_for

pytestmark = pytest.mark.system

# When SIGKILL is sent, and to which process. The launcher restarts ranks; a killed launcher leaves no process.
Kill = tuple[Literal["step", "checkpoint", "start"], Literal["rank", "launcher"]]
EACH_KILL: list[Kill] = list(product(("step", "checkpoint", "start"), ("rank", "launcher")))
# `make soak` sets 100.
KILLS = int(os.environ.get("KILLS", len(EACH_KILL)))


def kill_repeatedly(train: Train, words: Sequence[str], kills: Sequence[Kill]) -> tuple[Path, int]:
    """Start, kill and resume a run repeatedly, and return how many kills interrupted a checkpoint."""
    run, moments = train.folder / "runs" / "killed", random.Random(7)
    command = [*words, "run_name=killed", f"launch.max_restarts={len(kills)}"]
    process: Command | Popen[str] | None = None
    last_kill, before, interrupted = 0.0, set[int](), 0
    for when, victim in kills:
        process = process or train.start(*command)
        more = steps_done(run) + moments.randrange(3)
        if when == "checkpoint":
            _wait(process, lambda last_kill=last_kill: _is_saving(run, last_kill))
        elif when == "step":
            _wait(process, lambda more=more: steps_done(run) > more)
            time.sleep(moments.uniform(0, 0.1))
        else:
            _wait(process, lambda before=before: len(_process_ids(run) - before) > 1)
            time.sleep(moments.uniform(0, 1))
        ranks = list(ranks_of(run).values())
        before = {rank.pid for rank in ranks}
        if victim == "rank":
            moments.choice(ranks).kill()
        else:
            assert _end(process, run) != 0, "the run has ended before"
            command, process = ["resume", str(run)], None
            interrupted += _is_saving(run, last_kill)
        last_kill = time.time()
    if process is not None:
        _end(process, run)
    return run, interrupted


def _process_ids(run: Path) -> set[int]:
    return {rank.pid for rank in ranks_of(run).values()}


def _end(process: Command | Popen[str], run: Path) -> int | None:
    """Kill all processes, and return the exit code of the command."""
    process.kill()
    process.communicate()
    wait_for(lambda: not processes_of(run))
    return process.returncode


def _is_saving(run: Path, last_kill: float) -> bool:
    """Return whether a temporary checkpoint exists that is newer than the last kill."""
    for path in (run / "checkpoints").glob(".step-*.tmp"):
        with suppress(FileNotFoundError):
            # note: peers of a killed rank may write a little longer; every start takes more than a second
            if path.stat().st_mtime > last_kill + 1:
                return True
    return False


def _wait(process: Command | Popen[str], condition: Callable[[], bool]) -> None:
    """Wait until the condition holds or the process has ended."""
    end = time.monotonic() + 240
    while not condition() and process.poll() is None:
        assert time.monotonic() < end, "timed out"
        time.sleep(0.02)


def assert_same_end(train: Train, run: Path, uninterrupted: Path) -> None:
    assert same(train.decided(run), train.decided(uninterrupted))
    wait_for(lambda: not processes_of(run), 10)


@pytest.mark.skeleton
def test_a_stopped_rank_is_reported_and_recovered_by_a_restart(train: Train, uninterrupted: Path) -> None:
    train.before = (*train.before, patience.of_elastic)
    process = train.start(*SHORT, "run_name=lost", "launch.hang_timeout=8")
    run = train.folder / "runs" / "lost"
    wait_for(lambda: steps_done(run) >= 9)
    ranks, start_time = ranks_of(run), time.monotonic()
    ranks[1].send_signal(signal.SIGSTOP)
    wait_for(lambda: not any(map(is_alive, ranks.values())))
    assert time.monotonic() - start_time < 200
    output, _ = ended(process)
    assert "restarting from the newest checkpoint (1 of 3)" in output
    assert "rank 1 was stopped, by SIGSTOP or a debugger" in output
    assert_same_end(train, run, uninterrupted)


def test_a_run_suspended_for_longer_than_the_time_limit_continues(train: Train, uninterrupted: Path) -> None:
    process = train.start(*SHORT, "run_name=suspended", "launch.hang_timeout=5")
    run = train.folder / "runs" / "suspended"
    wait_for(lambda: steps_done(run) >= 9)
    everyone = processes_of(run)
    for number, seconds in ((signal.SIGSTOP, 12), (signal.SIGCONT, 0)):
        for member in everyone:
            member.send_signal(number)
        time.sleep(seconds)
    output, errors = ended(process)
    assert "restarting" not in output + errors
    assert_same_end(train, run, uninterrupted)


@pytest.mark.timeout(300 + 60 * KILLS)
def test_a_run_killed_repeatedly_ends_with_the_same_bits(train: Train) -> None:
    small = ["checkpoint.every=2ba", "eval_every=4ep", "batch_size=8", "dataset.train_samples=48"]
    words = [*SHORT, *small, f"epochs={KILLS // 2 + 5}"]
    train(*words, "run_name=whole")
    run, interrupted = kill_repeatedly(train, words, list(islice(cycle(EACH_KILL), KILLS)))
    assert interrupted, "an interrupted checkpoint leaves its temporary file"
    train("resume", str(run))
    assert_same_end(train, run, run.with_name("whole"))


def test_a_stop_signal_to_one_rank_ends_the_run_as_stopped(train: Train, uninterrupted: Path) -> None:
    process = train.start(*SHORT, "run_name=parts")
    run = train.folder / "runs" / "parts"
    wait_for(lambda: steps_done(run) >= 9)
    ranks_of(run)[1].send_signal(signal.SIGTERM)
    output, _ = ended(process, 143)
    assert "stopped, since a rank or another node has received a stop signal" in output
    train("resume", str(run))
    assert_same_end(train, run, uninterrupted)


@pytest.mark.skeleton
def test_a_stopped_run_resumes_to_the_same_bits_despite_a_damaged_checkpoint(
    train: Train, here: Here, uninterrupted: Path
) -> None:
    process = train.start(*SHORT, "run_name=parts")
    run = train.folder / "runs" / "parts"
    wait_for(lambda: steps_done(run) >= 9)
    process.send_signal(signal.SIGTERM)
    ended(process, 143)
    assert 9 <= train.state(run)["step"] < 18  # type: ignore[operator]
    other = Path(shutil.copytree(run, run.with_name("other")))

    _, newest = checkpoint_files(run / "checkpoints")[-1]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    finished = train("resume", str(run))
    assert f"checkpoint={newest}: damaged" in finished.stdout
    assert_same_end(train, run, uninterrupted)
    assert results(run) == results(uninterrupted)

    refused = here("resume", str(other), "optimizer.lr=1", "seed=3", "launch.nproc=1", code=2)
    keys = [line.split(":")[1].split("=")[0].strip() for line in refused.stderr.splitlines()]
    assert keys == ["seed", "optimizer.lr"]
    assert "cannot change when a run resumes" in refused.stderr
    assert "epochs=1" in here("resume", str(other), "epochs=1", code=2).stderr
    one = here("resume", str(other), "launch.nproc=1")
    assert "the run had 2 processes and resumes with 1" in " ".join(one.stdout.split())
    assert train.state(other)["step"] == 18
