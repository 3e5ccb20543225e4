import json
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.records.metrics import read_metrics
from launcher_lab.study.verify import RECORD
from tests.grids import fork_runs, have_two_cores
from tests.runs import Train, ended, processes_of, same, slow_down, steps_done, wait_for
from tests.speedruns import TRACK, WORDS

pytestmark = pytest.mark.system

RUN = [
    "speedrun",
    f"track={TRACK}",
    *(word for word in WORDS if not word.startswith("schedule.")),
    "checkpoint.every=2ba",
]
FOLDER = Path("runs") / "speedrun-own0-mild-2ep"
# Values of a record that differ between machines, times of day and resumes.
MEASURED = ("runs", "minutes_mean", "minutes_deviation", "runs_at_once", "index_sha256")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Train, str]]:
    """A speedrun that ran through, and its output."""
    train = Train(tmp_path_factory.mktemp("whole"), around=(fork_runs,))
    yield train, train(*RUN).stdout
    shutil.rmtree(train.folder)


def test_a_speedrun_trains_its_runs_once_and_is_verified(whole: tuple[Train, str]) -> None:
    train, output = whole
    folder = train.folder / FOLDER
    assert f"to verify it: train speedrun --verify {FOLDER}" in output
    assert sorted(run.name for run in folder.glob("*/")) == [f"mild-shapes-2ep-seed{seed}" for seed in range(5)]
    stated = json.loads((folder / RECORD).read_text())
    again = json.loads(train(*RUN, "--json").stdout)
    assert again == stated == json.loads((folder / RECORD).read_text())
    assert f"{stated['top1_mean']:.2f}" in train("speedrun", "--verify", str(folder)).stdout


def test_a_stopped_and_a_killed_speedrun_of_runs_at_once_has_the_record_of_one_that_ran_through(
    train: Train, whole: tuple[Train, str]
) -> None:
    folder, words = train.folder / FOLDER, [*RUN, "--parallel", "2"]
    first = [folder / f"mild-shapes-2ep-seed{seed}" for seed in (0, 1)]
    # note: a fork does not get the signal of its parent's death
    killed = replace(train, before=(*train.before, slow_down), around=(have_two_cores,))
    train = replace(train, around=(fork_runs, have_two_cores))
    process = train.start(*words)
    wait_for(lambda: all(map(steps_done, first)))
    process.send_signal(signal.SIGTERM)
    output, _ = ended(process, 143)
    assert "run the same command to continue" in output
    stopped = [*map(steps_done, first)]
    process = killed.start(*words)
    wait_for(lambda: any(steps_done(run) > steps for run, steps in zip(first, stopped, strict=True)))
    process.kill()
    ended(process, -9)
    wait_for(lambda: not processes_of(folder))
    assert not (folder / RECORD).exists()
    stated = json.loads(train(*words, "--json").stdout)
    assert any(row["kind"] == "resume" for run in first for row in read_metrics(run / "metrics.jsonl"))
    expected = json.loads((whole[0].folder / FOLDER / RECORD).read_text())
    assert [run["top1"] for run in stated["runs"]] == [run["top1"] for run in expected["runs"]]
    assert (stated["runs_at_once"], expected["runs_at_once"]) == (2, 1)
    assert {**expected, **{name: stated[name] for name in MEASURED}} == stated
    assert all(same(train.decided(run), train.decided(whole[0].folder / FOLDER / run.name)) for run in first)
    assert json.loads(train("speedrun", "--verify", str(folder), "--json").stdout) == stated
