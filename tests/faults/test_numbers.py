"""A loss that is not finite, because of a very large learning rate."""

from pathlib import Path

import pytest

from launcher.records.metrics import read_metrics
from tests.runs import SHORT, Here, Train

pytestmark = pytest.mark.system

DIVERGES = [*SHORT, "algorithms=[]", "optimizer.lr=1e15", "optimizer.scale_lr=off", "schedule.warmup=0ba"]
ALONE = [*DIVERGES, "launch.nproc=1"]


def bad_steps(run: Path) -> list[int]:
    return [row["step"] for row in read_metrics(run / "metrics.jsonl") if row["kind"] == "nonfinite"]


def test_skipped_steps_have_a_limit(train: Train) -> None:
    train = Train(train.folder, before=())
    ended = train(*DIVERGES, "run_name=bad", "nonfinite.limit=2", code=2)
    run = train.folder / "runs" / "bad"
    first = bad_steps(run)[0]
    assert bad_steps(run) == [first, first + 1, first + 2]
    assert "for 3 steps in a row (nonfinite.limit=2)" in ended.stderr
    assert "restarting" not in ended.stdout, "the error would repeat"


def test_the_run_can_stop_at_once(here: Here) -> None:
    ended = here(*ALONE, "run_name=stopped", "nonfinite.policy=stop", code=2)
    assert len(bad_steps(here.folder / "runs" / "stopped")) == 1
    assert "(nonfinite.policy=stop)" in ended.stderr
