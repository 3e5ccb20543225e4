from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import floor
from lab.predict.trace import Call


def test_the_floor_of_a_recipe_and_the_plain_loop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "--recipe none hot --model resnet18 --batch 4 --sides 176 --set image.train_size=176 --json"
    assert floor.main([*words.split(), str(tmp_path / "floor.json")]) == 0
    floors = {(f["contender"], f["acting"]): f for f in json.loads((tmp_path / "floor.json").read_text())}
    plain, none = floors["plain PyTorch loop", ""], floors["none", ""]
    hot, sam = floors["hot", ""], floors["hot", "sam"]
    for one in floors.values():
        assert one["compiled"]["gigabytes"] < one["eager"]["gigabytes"]
        assert all(0 < one["compiled"]["least_ms"][gpu] <= ms for gpu, ms in one["eager"]["least_ms"].items())
        for kind, ms in one["compiled"]["exchange_ms"]["bfloat16"].items():
            assert ms == pytest.approx(one["compiled"]["exchange_ms"]["float32"][kind] / 2)
    # note: the same network, and SAM goes through it twice
    assert none["teraoperations"] == pytest.approx(plain["teraoperations"])
    assert sam["teraoperations"] == pytest.approx(2 * hot["teraoperations"], rel=0.01)
    assert "all-reduce over 8 GPUs" in capsys.readouterr().out


def test_a_call_is_continued_in_a_line_to_another_batch() -> None:
    # note: weights of 50 bytes stay, 10 bytes a picture grow
    few, more = (Call("mul", "elementwise", "network", {1: 10 * n, 2: 50}, {3: 10 * n}, 7 * n, n) for n in (2, 4))
    wanted = Call("mul", "elementwise", "network", {1: 2560, 2: 50}, {3: 2560}, 1792, 256)
    assert floor.at_batch(few, more, 2, 4, 256) == wanted
