"""A loss that is not finite, because of a very large learning rate."""

import pytest

from launcher.records.metrics import read_metrics
from tests.runs import SHORT, Train

pytestmark = pytest.mark.system

DIVERGES = ["algorithms=[]", "optimizer.lr=1e15", "optimizer.scale_lr=off", "schedule.warmup=0ba"]


def test_skipped_steps_have_a_limit(train: Train) -> None:
    train = Train(train.folder, before=())
    ended = train(*SHORT, *DIVERGES, "run_name=bad", "nonfinite.limit=2", code=2)
    rows = read_metrics(train.folder / "runs" / "bad" / "metrics.jsonl")
    first, *others = [row["step"] for row in rows if row["kind"] == "nonfinite"]
    assert others == [first + 1, first + 2]
    assert "for 3 steps in a row (nonfinite.limit=2)" in ended.stderr
    assert "restarting" not in ended.stdout, "the error would repeat"
