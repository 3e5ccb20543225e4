"""The best known lengths within a time, by runs made by hand."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.records.origins import write_origins
from launcher.records.run_folder import RunFolder
from launcher_lab.study import in_time
from launcher_lab.study.in_time import KnownChoice, known_choices
from tests.configs import composed
from tests.made_runs import MakeRun


@pytest.fixture
def choices(make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make a curve of mild, of 65 s an epoch by wall clock, and a run of hot; return the function of a time."""
    monkeypatch.setattr(in_time, "identity", lambda *_: "shapes at None")
    for epochs, seeds in ((2, (0.60, 0.64)), (4, (0.70,)), (8, (0.68,))):
        for seed, top1 in enumerate(seeds):
            path = make_run(f"mild-{epochs}-{seed}", (top1,) * epochs, (60.0,) * epochs, seed=seed)
            origins = {"model.name": "command line", "batch_size": "command line", "seed": "command line"}
            write_origins(RunFolder(path), {**origins, "schedule.name": "recipe mild", "recipe": "command line"})
    make_run("hot", (0.65, 0.65), (60.0, 60.0), recipe="hot")
    make_run("other", (0.9,), (1.0,), dataset={"name": "imagenet"})
    make_run("stopped", (0.9,), (1.0,), finished=None, seed=9)
    config = composed("dataset=shapes", f"runs={tmp_path}")

    def known(seconds: float, processes: int = 1, price: float | None = None, **typed: Any) -> list[KnownChoice]:
        priced = replace(config, hardware=replace(config.hardware, price_per_hour=price))
        return known_choices(priced, typed, processes, seconds)

    return known


def test_the_best_measured_or_interpolated_length_of_each_curve_in_the_time_comes_first(choices: Any) -> None:
    assert choices(129) == []
    first, second = choices(195, price=3.6)
    # note: between 2 epochs in 130 s and 4 in 260 s, in the logarithm
    top1 = 62 + 8 * math.log(1.5) / math.log(2)
    assert (first.words, first.top1) == (
        ("recipe=mild", "model=resnet18", "batch_size=64", "epochs=3"),
        pytest.approx(top1),
    )
    assert (first.low, first.high) == pytest.approx((60, 70))
    assert first.line.startswith("top-1 66.7 % (60.0 to 70.0 %) in 3 min 15 s for 0.20 USD: train recipe=mild")
    assert (second.words, second.top1) == (("recipe=hot", "epochs=2"), pytest.approx(65))
    assert "(one run) in 2 min 10 s: train recipe=hot" in choices(195)[1].line


def test_a_longer_run_that_was_worse_is_not_chosen(choices: Any) -> None:
    assert [(one.words[-1], round(one.top1)) for one in choices(9999)] == [("epochs=4", 70), ("epochs=2", 65)]


def test_runs_of_other_images_devices_or_values_are_not_known(choices: Any) -> None:
    assert choices(9999, processes=2) == []
    assert choices(9999, model="resnet50") == []
    assert [one.words[0] for one in choices(9999, recipe="auto", model="resnet18", budget="5min")] == [
        "recipe=mild",
        "recipe=hot",
    ]


def test_words_repeat_what_the_command_line_set(choices: Any, make_run: MakeRun) -> None:
    path = make_run("typed", (0.99,), (1.0,), image={"scale": [0.2, 1.0]})
    typed = ("image.scale", "algorithms.ema", "algorithms.mixup")
    write_origins(RunFolder(path), dict.fromkeys(typed, "command line"))
    words = next(one.words for one in choices(9999) if round(one.top1) == 99)
    assert words[1:] == ("image.scale=[0.2,1.0]", "algorithms.ema=on", "algorithms.mixup=off", "epochs=1")
