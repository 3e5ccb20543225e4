import importlib
import itertools
import json
import os
import re
import signal
import time
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import launcher
from launcher.records.metrics import read_metrics
from launcher.records.progress import wall_seconds
from tests import patience
from tests.runs import SMALL, Cold, Here, Train, ended, processes_of, ranks_of, results, same, steps_done, wait_for

pytestmark = pytest.mark.system

TWO_RANKS = [*SMALL, "launch.nproc=2", "dataloader.workers=1"]


@pytest.mark.skeleton
def test_two_ranks_train_evaluate_and_write_all_records(cold: Cold) -> None:
    words = ["epochs=2", "dataset.train_samples=48", "run_name=whole", "algorithms.ema.update_interval=2ba"]
    output = cold(*TWO_RANKS, *words).stdout
    run = cold.folder / "runs" / "whole"
    log = (run / "logs" / "rank-0.log").read_text()
    assert "the EMA half-life (100 steps) is too long for 6 steps" in " ".join(log.split())
    kinds = [row["kind"] for row in read_metrics(run / "metrics.jsonl")]
    assert (kinds[0], kinds[-1]) == ("start", "end")
    assert (kinds.count("train"), kinds.count("eval"), kinds.count("epoch")) == (6, 2, 2)
    evaluations = [row for row in read_metrics(run / "metrics.jsonl") if row["kind"] == "eval"]
    assert [row["samples"] for row in evaluations] == [50, 50]
    assert {path.name for path in run.iterdir()} >= {"config.yaml", "environment.json", "curve.png", "logs"}
    assert (run / "logs" / "rank-1.log").exists()
    logged = (run / "logs" / "rank-0.log").read_text().splitlines()
    assert not [line for line in logged if not re.match(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d(  |\| )", line)]
    # note: the log has the notes themselves
    (more,) = {*output.splitlines()} - {line[21:] for line in logged}
    assert more.endswith("more, which `train plan` prints with the words of this run, and logs/rank-0.log has")
    environment = json.loads((run / "environment.json").read_text())
    assert environment["packages"]["torch"]
    assert environment["version"] == launcher.__version__
    wait_for(lambda: not processes_of(run), 10)


def test_the_seed_decides_the_weights(here: Here) -> None:
    first, again, other = here.small("first"), here.small("again"), here.small("other", "seed=7")
    assert same(here.decided(first), here.decided(again))
    assert results(first) == results(again)
    assert not same(here.state(first)["model"], here.state(other)["model"])
    shown = here("diff", str(first), str(other)).stdout
    assert "seed" in shown
    assert "optimizer.lr" not in shown


def test_a_clock_that_is_set_back_changes_no_duration(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(2e9, -3600)
    monkeypatch.setattr(time, "time", lambda: next(clock))
    here(*SMALL, "run_name=back", stop_after=8, code=143)
    here("resume", "runs/back")
    rows = read_metrics(here.folder / "runs" / "back" / "metrics.jsonl")
    times, end = [row["time"] for row in rows], rows[-1]
    assert times == sorted(times)
    assert end["train_seconds"] + end["eval_seconds"] < wall_seconds(rows) < 300
    assert "finished" in here("ls", "runs").stdout


def signals_itself_in(module: str, name: str) -> None:
    """Make the command send itself the signal of Slurm's time limit before it calls a function."""
    owner = importlib.import_module(module)
    function = getattr(owner, name)

    def signalled(*arguments: Any, **keywords: Any) -> Any:
        os.kill(os.getpid(), signal.SIGUSR1)
        return function(*arguments, **keywords)

    setattr(owner, name, signalled)


@pytest.mark.parametrize(
    ("function", "code", "line"),
    [
        ("launcher.launch.start:identity", 143, "stopped by SIGUSR1"),
        ("launcher.launch.start:write", 143, "stopped; no step was completed; to start again, type the same command"),
        ("launcher.launch.start:summary_table", 0, "run folder          runs/signalled"),
    ],
)
def test_the_signal_that_slurm_sends_is_handled_before_and_after_training(
    train: Train, function: str, code: int, line: str
) -> None:
    ended = replace(train, around=(partial(signals_itself_in, *function.split(":")),))(
        *SMALL, "epochs=1", "schedule.warmup=0ba", "run_name=signalled", code=code
    )
    assert line in ended.stdout + ended.stderr
    assert (train.folder / "runs" / "signalled").exists() == (code == 0)


def stop_in_last_save() -> None:
    """Make the last save of a rank send the launcher a stop signal, and wait for it."""
    from launcher.rank.signs import STOP
    from launcher.training.saving import Saver

    save = Saver.save

    def signalled(saver: Saver, state: dict[str, Any], *, last: bool, **more: bool) -> None:
        if last:
            os.kill(os.getppid(), signal.SIGUSR1)
            wait_for(lambda: STOP.requested)
        save(saver, state, last=last, **more)

    Saver.save = signalled  # type: ignore[assignment, method-assign]


def test_a_run_that_is_stopped_in_its_last_save_has_finished(train: Train) -> None:
    words = [*SMALL, "epochs=1", "schedule.warmup=0ba", "run_name=last"]
    ended = replace(train, before=(*train.before, stop_in_last_save))(*words)
    assert "stopping after this step" in ended.stdout
    assert "to resume" not in ended.stdout
    assert "is finished after 1 epoch" in train("resume", "runs/last").stdout


def test_a_run_in_use_is_refused_and_a_killed_rank_is_reported_first(train: Train, here: Here) -> None:
    train.before = (*train.before, patience.of_elastic)
    process = train.start(*TWO_RANKS, "run_name=busy", "epochs=200", "launch.max_restarts=0")
    run = train.folder / "runs" / "busy"
    wait_for(lambda: steps_done(run) >= 2)
    assert "in use by process" in here("resume", str(run), code=2).stderr
    assert "set another run_name" in here(*SMALL, "run_name=busy", code=2).stderr
    ranks_of(run)[1].kill()
    start = time.monotonic()
    _, errors = ended(process, 1)
    assert time.monotonic() - start < 200, "elastic itself waits for 300 s"
    assert errors.startswith("error: rank 1 failed: killed by SIGKILL")
    wait_for(lambda: not processes_of(run), 10)
