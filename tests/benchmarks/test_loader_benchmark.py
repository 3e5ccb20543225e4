from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks import loader


def test_the_loader_benchmark_runs_on_a_few_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(0)
    with tarfile.open(tmp_path / "pictures.tar", "w") as archive:
        for number in range(3):
            path = tmp_path / f"{number}.jpg"
            Image.fromarray(random.integers(0, 256, (60, 80, 3), dtype=np.uint8)).save(path)
            archive.add(path, path.name)
    words = f"--pictures {tmp_path}/pictures.tar --sizes 32 --repeats 1 --json {tmp_path}/out.json"
    assert loader.main(words.split()) == 0
    results = json.loads((tmp_path / "out.json").read_text())["results"]
    assert len(results) == 9
    assert all(0 < r["least"] <= r["median"] <= r["most"] for r in results)
    assert "plain FFCV, file as published" in capsys.readouterr().out


def test_ratios_are_to_plain_ffcv_at_the_same_side() -> None:
    results = [loader.Result(loader.PLAIN, 88, 100, 90, 110, 1e3), loader.Result("other", 88, 250, 1, 300, 2e3)]
    assert [list(column.cells) for column in loader.table(results).columns][-2:] == [["1.00", "2.50"], ["1", "2"]]
