"""Each benchmark runs at a toy size and writes its results."""

import json
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from benchmarks import algorithms, peers, step
from launcher.config.compose import compose
from tests.networks import tiny


@pytest.mark.slow
@pytest.mark.usefixtures("tiny_networks")
def test_every_algorithm_is_timed_at_a_toy_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "--model resnet18 --size 32 --batch 4 --steps 1 --repeats 1 --device cpu --precision fp32 --json"
    assert algorithms.main([*words.split(), str(tmp_path / "out.json")]) == 0
    ratios = json.loads((tmp_path / "out.json").read_text())["ratios"]
    assert {"sam", "randaugment", "channels_last", "blurpool"} <= ratios.keys()
    assert all(ratio > 0 for ratio in ratios.values())
    assert "step time / plain" in capsys.readouterr().out


@pytest.mark.usefixtures("tiny_networks")
@pytest.mark.parametrize("recipe", ["mild", "medium"])
def test_the_step_benchmark_runs_at_a_toy_size(
    tmp_path: Path, recipe: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step.torchvision.models, "get_model", tiny)
    words = (
        f"--recipe {recipe} --model resnet18 --sizes 32 --batch 4 --seconds 0 --repeats 2 --device cpu --precision fp32"
    )
    assert step.main([*words.split(), "--json", str(tmp_path / "out.json")]) == 0
    results = json.loads((tmp_path / "out.json").read_text())["results"]
    assert len(results) == 5
    assert all(0 < r["minimum"] <= r["median"] <= r["maximum"] for r in results)
    assert "plain PyTorch loop" in capsys.readouterr().out


def test_medians_and_ratios_come_from_the_measured_times(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([9.0, 9.0, 1.0, 2.0, 3.0, 4.0, 2.0, 3.0])
    monkeypatch.setattr(step, "_seconds", lambda *_: next(seconds))
    contenders = {"plain PyTorch loop": lambda: None, "ours": lambda: None}
    device = step.torch.device("cpu")
    *_, results = step.measure(contenders, size=32, batch=8, steps=3, repeats=3, device=device)
    assert [(r.median, r.minimum, r.maximum) for r in results] == [(12, 8, 24), (8, 6, 12)]
    ratios = list(step.table(results).columns[-2].cells)
    assert ratios == ["1.000", "0.667"]


def test_contenders_that_no_longer_fit_the_time_are_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    builders = {name: lambda: print for name in ("first", "second")}
    assert list(step.built_in_time(builders, 0)) == ["first"]
    assert "skipped second: the others took more than --build-seconds=0" in capsys.readouterr().out
    assert list(step.built_in_time(builders, 60)) == ["first", "second"]


def test_composer_has_a_recipes_algorithms_and_values(monkeypatch: pytest.MonkeyPatch) -> None:
    composers = Mock()
    monkeypatch.setitem(sys.modules, "composer", Mock(algorithms=composers))
    config = compose(["recipe=hot"]).config
    values = config.algorithms["sam"]
    assert len(peers._algorithms(config)) == 8
    composers.SAM.assert_called_once_with(rho=values.rho, interval=values.interval)
