"""Each benchmark runs at a toy size and writes its results."""

import json
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from benchmarks import algorithms, checkpoint, floor, peers, report_page, startup, step
from benchmarks.chromium import installed
from launcher.config.compose import compose
from launcher_lab.predict.trace import Call
from tests.networks import tiny


@pytest.mark.slow
@pytest.mark.usefixtures("tiny_networks")
def test_every_algorithm_is_timed_at_a_toy_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "--model resnet18 --size 32 --batch 4 --steps 1 --repeats 1 --device cpu --precision fp32 --json"
    assert algorithms.main([*words.split(), str(tmp_path / "out.json")]) == 0
    ratios = json.loads((tmp_path / "out.json").read_text())["ratios"]
    assert {"sam", "randaugment", "channels_last", "blurpool"} <= ratios.keys()
    assert len(ratios) == 27
    assert all(ratio > 0 for ratio in ratios.values())
    assert "step time / plain" in capsys.readouterr().out


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
    assert "stall of training per checkpoint" in capsys.readouterr().out
    assert not list(tmp_path.glob("tmp*"))


@pytest.mark.slow
def test_each_command_is_timed_beside_hydra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(startup, "COMMANDS", {name: startup.COMMANDS[name] for name in (startup.PEER, "ls")})
    assert startup.main(["--repeats", "1", "--json", str(tmp_path / "out.json")]) == 0
    facts = json.loads((tmp_path / "out.json").read_text())
    assert set(facts) == {startup.PEER, "ls"}
    assert all(seconds > 0 for seconds in facts.values())


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


@pytest.mark.slow
def test_a_small_report_page_is_measured(tmp_path: Path) -> None:
    if installed() is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    words = ["--runs", "40", "--curves", "5", "--repeats", "1", "--json", str(tmp_path / "figures.json")]
    assert report_page.main(words) == 0
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert (figures["runs"], figures["curves"]) == (40, 5)
    assert all(figures[name] > 0 for name in ("megabytes", "open_ms", "filter_ms", "filter_cpu_ms", "nodes"))


@pytest.mark.slow
def test_the_floor_of_a_recipe_beside_the_plain_loop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "--recipe none hot --model resnet18 --batch 4 --sizes 176 --set image.train_size=176 --json"
    assert floor.main([*words.split(), str(tmp_path / "floor.json")]) == 0
    floors = {(f["contender"], f["acting"]): f for f in json.loads((tmp_path / "floor.json").read_text())}
    plain, none = floors["plain PyTorch loop", ""], floors["none", ""]
    hot, sam = floors["hot", ""], floors["hot", "sam"]
    for one in floors.values():
        assert one["compiled"]["gigabytes"] < one["eager"]["gigabytes"]
        assert all(0 < one["compiled"]["minimum_ms"][gpu] <= ms for gpu, ms in one["eager"]["minimum_ms"].items())
        for kind, ms in one["compiled"]["all_reduce_ms"]["bfloat16"].items():
            assert ms == pytest.approx(one["compiled"]["all_reduce_ms"]["float32"][kind] / 2)
    # note: the same network; SAM has two passes
    assert none["teraoperations"] == pytest.approx(plain["teraoperations"])
    assert sam["teraoperations"] == pytest.approx(2 * hot["teraoperations"], rel=0.01)
    assert "all-reduce over 8 GPUs" in capsys.readouterr().out


def test_a_call_is_extrapolated_linearly_to_another_batch_size() -> None:
    # note: 50 bytes of weights, 10 bytes per image
    few, more = (Call("mul", "elementwise", "network", {1: 10 * n, 2: 50}, {3: 10 * n}, 7 * n, n) for n in (2, 4))
    expected = Call("mul", "elementwise", "network", {1: 2560, 2: 50}, {3: 2560}, 1792, 256)
    assert floor.at_batch(few, more, 2, 4, 256) == expected


def test_composer_has_a_recipes_algorithms_and_values(monkeypatch: pytest.MonkeyPatch) -> None:
    composers = Mock()
    monkeypatch.setitem(sys.modules, "composer", Mock(algorithms=composers))
    config = compose(["recipe=hot"]).config
    values = config.algorithms["sam"]
    assert len(peers._algorithms(config)) == 8
    composers.SAM.assert_called_once_with(rho=values.rho, interval=values.interval)
