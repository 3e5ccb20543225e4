import json
import os
import signal
from contextlib import suppress
from dataclasses import replace

import psutil
import pytest

from launcher.records.metrics import read_metrics
from launcher_lab.study.verify import RECORD
from tests.grids import fork_runs, have_two_cores
from tests.runs import Train, ended, processes_of, steps_done, wait_for
from tests.speedruns import TRACK, WORDS

pytestmark = pytest.mark.system

RUNS = ["speedrun", f"track={TRACK}", *(word for word in WORDS if not word.startswith(("epochs=", "schedule.")))]


def test_a_speedrun_trains_its_runs_once_and_is_verified(train: Train) -> None:
    train = replace(train, around=(fork_runs,))
    folder = train.folder / "runs" / "speedrun-own0-mild-1ep"
    output = train(*RUNS, "epochs=1").stdout
    assert f"to verify it: train speedrun --verify {folder.relative_to(train.folder)}" in output
    assert sorted(run.name for run in folder.glob("*/")) == [f"mild-shapes-1ep-seed{seed}" for seed in range(5)]
    stated = json.loads((folder / RECORD).read_text())
    again = json.loads(train(*RUNS, "epochs=1", "--json").stdout)
    assert again == stated == json.loads((folder / RECORD).read_text())
    assert f"{stated['top1_mean']:.2f}" in train("speedrun", "--verify", str(folder)).stdout


def test_a_stopped_and_a_killed_speedrun_of_runs_at_once_resumes_and_is_verified(train: Train) -> None:
    train = replace(train, around=(fork_runs, have_two_cores))
    folder = train.folder / "runs" / "speedrun-own0-mild-2ep"
    words = [*RUNS, "epochs=2", "checkpoint.every=2ba", "--parallel", "2"]
    first = [folder / f"mild-shapes-2ep-seed{seed}" for seed in (0, 1)]
    process = train.start(*words)
    wait_for(lambda: all(map(steps_done, first)))
    process.send_signal(signal.SIGTERM)
    output, _ = ended(process, 143)
    assert "run the same command to continue" in output
    stopped = [*map(steps_done, first)]
    process = train.start(*words)
    wait_for(lambda: any(steps_done(run) > steps for run, steps in zip(first, stopped, strict=True)))
    process.kill()
    for one in processes_of(folder):
        with suppress(psutil.Error):
            if one.pid != os.getpid():
                one.kill()
    ended(process, -9)
    assert not (folder / RECORD).exists()
    output = train(*words).stdout
    assert output.count(" on core ") == 5
    assert all(any(row["kind"] == "resume" for row in read_metrics(run / "metrics.jsonl")) for run in first)
    stated = json.loads((folder / RECORD).read_text())
    assert [run["seed"] for run in stated["runs"]] == [0, 1, 2, 3, 4]
    assert json.loads(train("speedrun", "--verify", str(folder), "--json").stdout) == stated
