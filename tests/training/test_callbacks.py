"""The user's callbacks: what they read, when they are called, and what an error in one leaves."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from launcher.config.compose import compose
from launcher.errors import UserError
from launcher.training.callbacks import Callbacks, check_plain
from tests.own_code import NETS, OWN, lines, name_code, own_folder
from tests.runs import Train, same

WATCHED = [*OWN, "callbacks=[watch]", "metrics.top2._target_=nets.top2"]


@pytest.fixture
def stranger(train: Train) -> Iterator[Train]:
    options = {
        "conf/model/mine.yaml": "_target_: nets.TinyNet\n",
        "conf/callbacks/watch.yaml": "# Writes watch.txt.\n_target_: nets.Watch\nevery: 4\n",
    }
    return own_folder(train, {"nets.py": NETS, **options})


@pytest.mark.system
def test_an_error_in_a_callback_stops_the_run_with_a_checkpoint_and_its_name(stranger: Train, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "failing"
    stranger(*WATCHED, "run_name=whole")
    process = stranger(*WATCHED, "run_name=failing", "callbacks.watch.fail_at=7", code=2)
    line = process.stderr.splitlines()[-1]
    assert "callbacks.watch=nets.Watch" in line
    assert "after_step at step 7 fails: RuntimeError: no such luck (nets.py:" in line
    assert 8 <= stranger.state(run)["step"] <= 10
    stranger("resume", str(run), "callbacks.watch=off")
    assert same(stranger.decided(run)["weights"], stranger.decided(tmp_path / "runs" / "whole")["weights"])
    written = lines(tmp_path / "runs" / "whole" / "watch.txt")
    each = ["step", "epoch", "evaluation", "step", "step", "epoch", "evaluation", "step", "epoch", "evaluation"]
    assert [line.split()[0] for line in written] == each
    assert [line.split()[3] for line in written if "step" in line] == ["4", "8", "12", "16"]


def test_callbacks_are_refused_before_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name_code(tmp_path, monkeypatch, "class Silent:\n    def __init__(self, at: int = 1):\n        self.at = at\n")
    words = ["code=nets.py", "callbacks.own._target_=nets.Silent"]
    with pytest.raises(UserError, match="has none of the methods after_step, after_epoch, after_evaluation"):
        Callbacks(compose(words).config.callbacks)
    with pytest.raises(UserError, match=r"callbacks.own.att=1.*did you mean callbacks.own.at"):
        compose([*words, "callbacks.own.att=1"])
    with pytest.raises(UserError, match=r"callbacks.nte=on.*no such callback"):
        compose(["callbacks.nte=on"])


def test_states_hold_what_a_checkpoint_can() -> None:
    check_plain({"a": [1, 2.0, "x", None, torch.ones(1)], 3: (True,)})
    with pytest.raises(TypeError, match="it has PosixPath"):
        check_plain({"a": [Path()]})
