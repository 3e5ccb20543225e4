from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from launcher.config.compose import compose
from launcher.errors import UserError
from launcher.rank.group import Ranks
from launcher.records.folder import RunFolder
from launcher.training import checkpoint
from launcher.training.saving import Saver, copy_to_host

FIRST = Ranks(0, 1, 0, 1, torch.device("cpu"))


def saver(folder: Path, *words: str, ranks: Ranks = FIRST, now=lambda: 0.0) -> Saver:
    (folder / "checkpoints").mkdir(exist_ok=True)
    return Saver(RunFolder(folder), compose(list(words)).config.checkpoint, ranks, now)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    with saver(tmp_path, "checkpoint.keep=2") as saves:
        for step in range(1, 6):
            saves.save({"step": step}, best=step == 2, last=False)
    assert files(tmp_path) == ["best.pt", "step-00000004.pt", "step-00000005.pt"]
    assert checkpoint.load(RunFolder(tmp_path).best) == {"step": 2}


def test_the_best_is_kept_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr("os.link", no_link)
    with saver(tmp_path) as saves:
        saves.save({"step": 1}, best=True, last=True)
    assert checkpoint.load(RunFolder(tmp_path).best) == {"step": 1}


def test_what_is_saved_is_the_state_of_the_moment(tmp_path: Path) -> None:
    weights = torch.ones(200_000)
    with saver(tmp_path) as saves:
        saves.save({"step": 1, "model": {"w": weights}, "weights": {"w": weights}}, best=False, last=False)
        weights.zero_()
    state = checkpoint.newest_valid(tmp_path / "checkpoints")
    assert torch.equal(state["model"]["w"], torch.ones(200_000))
    size = (tmp_path / "checkpoints" / "step-00000001.pt").stat().st_size
    assert size < 1.5 * weights.nbytes, "one tensor in two places is saved once"


def test_a_snapshot_keeps_parts_of_one_storage_apart() -> None:
    whole = torch.arange(6.0)
    copied = copy_to_host({"all": whole, "parts": [whole[:3], whole[3:]], "turned": whole.view(2, 3).T})
    assert torch.equal(copied["parts"][1], torch.tensor([3.0, 4.0, 5.0]))
    assert torch.equal(copied["turned"], whole.view(2, 3).T)


def test_a_failing_save_is_a_warning_until_the_last(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with saver(tmp_path) as saves:
        (tmp_path / "checkpoints").rmdir()
        (tmp_path / "checkpoints").write_text("in the way")
        saves.save({"step": 1}, best=False, last=False)
        saves.save({"step": 2}, best=False, last=False)
        assert "warning: checkpoint=" in capfd.readouterr().out
        with pytest.raises(UserError, match="cannot be written"):
            saves.save({"step": 3}, best=False, last=True)


def test_a_failing_save_may_be_the_end(tmp_path: Path) -> None:
    with saver(tmp_path, "checkpoint.on_failure=stop", "checkpoint.asynchronous=false") as saves:
        (tmp_path / "checkpoints").rmdir()
        (tmp_path / "checkpoints").write_text("in the way")
        with pytest.raises(UserError, match="cannot be written"):
            saves.save({"step": 1}, best=False, last=False)


def test_saves_by_the_clock_count_from_the_last_one(tmp_path: Path) -> None:
    time = [0.0]
    with saver(tmp_path, "checkpoint.every_minutes=2", now=lambda: time[0]) as saves:
        time[0] = 119
        assert not saves.is_due()
        time[0] = 120
        assert saves.is_due()
        saves.save({"step": 1}, best=False, last=False)
        assert not saves.is_due()
        time[0] = 240
        assert saves.is_due()
    time[0] = 0
    with saver(tmp_path, "checkpoint.every_minutes=null", now=lambda: time[0]) as saves:
        time[0] = 1e9
        assert not saves.is_due()


def test_only_the_first_rank_saves(tmp_path: Path) -> None:
    with saver(tmp_path, ranks=dataclasses.replace(FIRST, rank=1), now=lambda: 1e9) as saves:
        saves.save({"step": 1}, best=True, last=True)
        assert not saves.is_due()
    assert files(tmp_path) == []
