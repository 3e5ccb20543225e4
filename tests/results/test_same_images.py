"""The runs of the same images, and the words that repeat them, by runs made by hand."""

from pathlib import Path
from typing import Any

import pytest

from launcher.records.origins import write_origins
from launcher.records.run import read_run
from launcher.records.run_folder import RunFolder
from launcher.results import same_images
from launcher.results.same_images import runs_of, words_of
from tests.configs import composed
from tests.made_runs import MakeRun


def test_runs_of_other_images_or_values_are_not_taken(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(same_images, "identity", lambda *_: "shapes at None")
    make_run("mild")
    make_run("hot", recipe="hot")
    make_run("other", dataset={"name": "imagenet"})
    config = composed("dataset=shapes", f"runs={tmp_path}")

    def names(**typed: Any) -> list[str]:
        return sorted(run.path.name for run in runs_of(config, typed))

    assert names(recipe="auto", model="resnet18", epochs=9) == ["hot", "mild"]
    assert names(recipe="hot") == ["hot"]
    assert names(model="resnet50") == []


def test_words_repeat_what_the_command_line_set(make_run: MakeRun) -> None:
    path = make_run("typed", image={"scale": [0.2, 1.0]})
    typed = ("model.name", "image.scale", "algorithms.ema", "algorithms.mixup", "seed")
    write_origins(RunFolder(path), {**dict.fromkeys(typed, "command line"), "schedule.name": "recipe mild"})
    assert words_of(read_run(path)) == [
        *("recipe=mild", "model=resnet18", "image.scale=[0.2,1.0]", "algorithms.ema=on", "algorithms.mixup=off")
    ]
