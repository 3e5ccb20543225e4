from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import step
from tests.networks import tiny


@pytest.mark.usefixtures("tiny_networks")
@pytest.mark.parametrize("recipe", ["mild", "medium"])
def test_the_step_benchmark_runs_at_a_toy_size(
    tmp_path: Path, recipe: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step.torchvision.models, "get_model", tiny)
    words = (
        f"--recipe {recipe} --model resnet18 --sizes 32 --batch 4 --steps 1 --repeats 2 --device cpu --precision fp32"
    )
    assert step.main([*words.split(), "--json", str(tmp_path / "out.json")]) == 0
    results = json.loads((tmp_path / "out.json").read_text())["results"]
    assert len(results) == 4
    assert all(0 < r["least"] <= r["median"] <= r["most"] for r in results)
    assert "plain PyTorch loop" in capsys.readouterr().out


def test_medians_and_ratios_come_from_the_measured_times(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([9.0, 9.0, 1.0, 2.0, 3.0, 4.0, 2.0, 3.0])
    monkeypatch.setattr(step, "_seconds", lambda *_: next(seconds))
    contenders = {"plain PyTorch loop": lambda: None, "ours": lambda: None}
    device = step.torch.device("cpu")
    results = step.measure(contenders, size=32, batch=8, steps=3, repeats=3, device=device)
    assert [(r.median, r.least, r.most) for r in results] == [(12, 8, 24), (8, 6, 12)]
    ratios = list(step.table(results, "x").columns[-1].cells)
    assert ratios == ["1.000", "0.667"]
