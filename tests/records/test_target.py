"""Time to target on the training clock."""

from __future__ import annotations

import pytest

from launcher.config.compose import compose
from launcher.config.fields import target_accuracy
from launcher.errors import UserError
from launcher.records.metrics import reached

ROWS = [
    {"kind": "train", "step": 10, "loss": 1.0},
    {"kind": "eval", "step": 10, "epoch": 1.0, "top1": 0.7, "train_seconds": 60.0},
    {"kind": "eval", "step": 20, "epoch": 2.0, "top1": 0.76, "train_seconds": 120.0},
    {"kind": "eval", "step": 30, "epoch": 3.0, "top1": 0.75, "train_seconds": 180.0},
]


def test_the_first_evaluation_at_the_target_counts() -> None:
    found = reached(ROWS, "top1:0.759")
    assert found is not None
    assert (found.step, found.epoch, found.seconds, found.top1) == (20, 2.0, 120.0, 0.76)
    exactly = reached(ROWS, "top1:0.76")
    assert exactly is not None
    assert exactly.step == 20
    assert reached(ROWS, "top1:0.77") is None


@pytest.mark.parametrize("text", ["0.759", "top1:75.9", "top1:0", "top1:0.0", "top5:0.9", "top1:1.01", "top1", ""])
def test_what_is_no_target_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"top1:0\.759"):
        target_accuracy(text)


def test_the_command_line_takes_one_and_names_a_wrong_one() -> None:
    assert compose(["target=top1:0.759"]).config.target == "top1:0.759"
    assert compose([]).config.target is None
    with pytest.raises(UserError, match=r"target=top1:76 \(command line\): not a target"):
        compose(["target=top1:76"])
