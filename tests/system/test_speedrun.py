import json
from dataclasses import replace

import pytest

from launcher_lab.study.verify import RECORD
from tests.grids import fork_runs
from tests.runs import Train
from tests.speedruns import TRACK, WORDS

pytestmark = pytest.mark.system


def test_a_speedrun_trains_its_runs_once_and_is_verified(train: Train) -> None:
    train = replace(train, around=(fork_runs,))
    folder = train.folder / "runs" / "speedrun-own0-mild-1ep"
    words = ["speedrun", f"track={TRACK}", *(word for word in WORDS if not word.startswith(("epochs=", "schedule.")))]
    output = train(*words, "epochs=1").stdout
    assert f"to verify it: train speedrun --verify {folder.relative_to(train.folder)}" in output
    assert sorted(run.name for run in folder.glob("*/")) == [f"mild-shapes-1ep-seed{seed}" for seed in range(5)]
    stated = json.loads((folder / RECORD).read_text())
    again = json.loads(train(*words, "epochs=1", "--json").stdout)
    assert again == stated == json.loads((folder / RECORD).read_text())
    assert f"{stated['top1_mean']:.2f}" in train("speedrun", "--verify", str(folder)).stdout
