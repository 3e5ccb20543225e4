from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import algorithms

pytestmark = pytest.mark.usefixtures("tiny_networks")


def test_every_algorithm_is_timed_at_a_toy_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "--model resnet18 --size 32 --batch 4 --steps 1 --repeats 1 --device cpu --precision fp32 --json"
    assert algorithms.main([*words.split(), str(tmp_path / "out.json")]) == 0
    ratios = json.loads((tmp_path / "out.json").read_text())["ratios"]
    assert {"sam", "randaugment", "channels_last", "blurpool"} <= ratios.keys()
    assert len(ratios) == 22
    assert all(ratio > 0 for ratio in ratios.values())
    assert "step time / plain" in capsys.readouterr().out
