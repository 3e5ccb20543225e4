from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import checkpoint


@pytest.mark.usefixtures("tiny_networks")
def test_stall_and_resume_are_timed_at_a_toy_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    small = ["dataset.native_size=32", "dataset.train_samples=320", "dataset.val_samples=10", "dataloader.workers=0"]
    words = ["--model", "resnet18", "--device", "cpu", "--repeats", "1", "--folder", str(tmp_path), "--json"]
    assert checkpoint.main([*words, str(tmp_path / "out.json"), *small]) == 0
    facts = json.loads((tmp_path / "out.json").read_text())
    assert all(facts[name] > 0 for name in ("stall_seconds", "plain_save_seconds", "stall_ratio", "resume_ratio"))
    assert 0.4 < facts["megabytes"] < 0.6, "weights, averages and momentum of 37,000 parameters"
    assert "stall of training a save" in capsys.readouterr().out
    assert not list(tmp_path.glob("tmp*"))
