import dataclasses
from pathlib import Path

import pytest
import torch

from launcher.config.compose import compose
from launcher.files.disk import DiskError
from launcher.rank.group import Ranks
from launcher.records.run_folder import RunFolder
from launcher.training import checkpoint
from launcher.training.saving import Saver, copy_to_host

FIRST = Ranks(0, 1, 0, 1, torch.device("cpu"))


def saver(folder: Path, *words: str, ranks: Ranks = FIRST, now=lambda: 0.0) -> Saver:
    (folder / "checkpoints").mkdir(exist_ok=True)
    return Saver(RunFolder(folder), compose(list(words)).config.checkpoint, ranks, now=now)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def test_the_newest_and_the_best_checkpoints_are_kept(tmp_path: Path) -> None:
    with saver(tmp_path, "checkpoint.keep=2") as background:
        for step in range(1, 6):
            background.save({"step": step}, best=step == 2, last=False)
    assert files(tmp_path) == ["best.pt", "step-00000004.pt", "step-00000005.pt"]
    assert checkpoint.load(RunFolder(tmp_path).best) == {"step": 2}


def test_the_best_checkpoint_is_kept_on_a_disk_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr("os.link", no_link)
    with saver(tmp_path) as background:
        background.save({"step": 1}, best=True, last=True)
    assert checkpoint.load(RunFolder(tmp_path).best) == {"step": 1}


def test_a_checkpoint_has_the_state_at_the_call(tmp_path: Path) -> None:
    weights = torch.ones(200_000)
    with saver(tmp_path) as background:
        background.save({"step": 1, "model": {"w": weights}, "weights": {"w": weights}}, best=False, last=False)
        weights.zero_()
    state = checkpoint.newest_valid(tmp_path / "checkpoints")
    assert torch.equal(state["model"]["w"], torch.ones(200_000))
    size = (tmp_path / "checkpoints" / "step-00000001.pt").stat().st_size
    assert size < 1.5 * weights.nbytes, "a tensor under two keys is saved once"


def test_a_copy_keeps_views_of_one_storage_separate() -> None:
    whole = torch.arange(6.0)
    copied = copy_to_host({"all": whole, "views": [whole[:3], whole[3:]], "transposed": whole.view(2, 3).T})
    assert torch.equal(copied["views"][1], torch.tensor([3.0, 4.0, 5.0]))
    assert torch.equal(copied["transposed"], whole.view(2, 3).T)


def test_a_failed_checkpoint_is_a_warning_except_the_last(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with saver(tmp_path) as background:
        (tmp_path / "checkpoints").rmdir()
        (tmp_path / "checkpoints").write_text("in the way")
        background.save({"step": 1}, best=False, last=False)
        background.save({"step": 2}, best=False, last=False)
        assert "checkpoints: File exists; training continues" in capfd.readouterr().out
        with pytest.raises(DiskError, match=r"checkpoints.*: File exists"):
            background.save({"step": 3}, best=False, last=True)


def test_a_failed_checkpoint_ends_the_run_with_on_failure_stop(tmp_path: Path) -> None:
    with saver(tmp_path, "checkpoint.on_failure=stop", "checkpoint.asynchronous=false") as background:
        (tmp_path / "checkpoints").rmdir()
        (tmp_path / "checkpoints").write_text("in the way")
        with pytest.raises(DiskError, match=r"checkpoints.*: File exists"):
            background.save({"step": 1}, best=False, last=False)


def test_every_minutes_counts_from_the_last_checkpoint(tmp_path: Path) -> None:
    time = [0.0]
    with saver(tmp_path, "checkpoint.every_minutes=2.5", now=lambda: time[0]) as background:
        time[0] = 149
        assert not background.is_due()
        time[0] = 150
        assert background.is_due()
        background.save({"step": 1}, best=False, last=False)
        assert not background.is_due()
        time[0] = 300
        assert background.is_due()
    time[0] = 0
    with saver(tmp_path, "checkpoint.every_minutes=null", now=lambda: time[0]) as background:
        time[0] = 1e9
        assert not background.is_due()


def test_only_rank_0_saves_checkpoints(tmp_path: Path) -> None:
    with saver(tmp_path, ranks=dataclasses.replace(FIRST, rank=1), now=lambda: 1e9) as background:
        background.save({"step": 1}, best=True, last=True)
        assert not background.is_due()
    assert files(tmp_path) == []
