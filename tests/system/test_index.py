"""The images of a run are listed once, before its ranks start, which read the index in its folder."""

import importlib
import os
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from launcher.records.metrics import read_metrics
from tests.language import RUN, text_in
from tests.runs import Train, draw_nothing, use_tiny

pytestmark = pytest.mark.system

WORDS = [
    *("recipe=mild", "model=resnet18", "dataset=image_folder", "dataset.native_size=32", "launch=cpu", "batch_size=8"),
    *("launch.nproc=2", "dataloader.workers=1", "schedule.warmup=0ba", "logger.tensorboard=false"),
]


def count_calls(module: str, name: str) -> None:
    """Append each call of a function that lists images or text, and the process that calls it, to a file."""
    owner = importlib.import_module(module)
    listed = getattr(owner, name)

    def counted(path: Any, *arguments: Any, **keywords: Any) -> Any:
        splits = arguments[0] if name == "list_images" else ()
        with Path(os.environ["LISTINGS"]).open("a") as file:
            print("rank" if "RANK" in os.environ else "launcher", *splits, file=file)
        return listed(path, *arguments, **keywords)

    setattr(owner, name, counted)


def count_images() -> None:
    count_calls("launcher.data.sources.find", "list_images")


def count_texts() -> None:
    count_calls("launcher.data.text.prepare", "text_files")


@pytest.fixture
def counted(tmp_path: Path) -> Train:
    rows = ["image,label,split"]
    for split, count in (("images/train", 24), ("images/val", 10), ("test", 6)):
        for number in range(count):
            image = tmp_path / split / "ab"[number % 2] / f"\u00e9 {number}.png"
            image.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (40, 32), (9 * number, 255 * (number % 2), len(split))).save(image)
            rows += [f"{image.relative_to(tmp_path)},{image.parent.name},{image.parts[-3]}"] * (split != "test")
    (tmp_path / "images.csv").write_text("\n".join(rows))
    train = Train(tmp_path, before=(use_tiny, draw_nothing, count_images))
    train.environment = {**train.environment, "LISTINGS": str(tmp_path / "listings")}
    return train


def listings(folder: Path) -> list[str]:
    file = folder / "listings"
    lines = file.read_text().splitlines()
    file.unlink()
    return lines


@pytest.mark.parametrize("path", ["images", "images.csv"])
def test_images_are_listed_once_for_two_ranks_and_for_a_resume(counted: Train, path: str, tmp_path: Path) -> None:
    run, once = tmp_path / "runs" / "r", ["launcher train val", "launcher evaluation"]
    counted(*WORDS, "epochs=1", f"dataset.path={path}", "dataset.test_path=test", "run_name=r")
    assert listings(tmp_path) == once
    counted("resume", str(run), "epochs=2")
    assert listings(tmp_path) == once
    files = {file.name for file in (run / "index").glob("*.labels.npy")}
    assert files == {"train.labels.npy", "val.labels.npy", "test.labels.npy"}
    rows = read_metrics(run / "metrics.jsonl")
    assert [row["samples"] for row in rows if row["kind"] == "test"] == [6, 6]


@pytest.mark.parametrize("path", ["images", "images.csv"])
@pytest.mark.parametrize("verb", ["plan", "run"])
def test_the_images_that_choose_a_recipe_are_listed_once(counted: Train, verb: str, path: str, tmp_path: Path) -> None:
    words = ["recipe=auto", f"dataset.path={path}", "epochs=1", "launch=cpu", "model=resnet18", "dataloader.workers=0"]
    shown = counted(verb, *words).stderr
    chosen = "recipe=small dataset=image_folder batch_size=8 dataset.native_size=32"
    assert f"auto: {chosen}: 24 training images of 2 classes" in shown
    assert listings(tmp_path) == ["launcher train val"]


def test_text_is_listed_once_for_two_ranks_and_for_a_resume(tmp_path: Path) -> None:
    text_in(tmp_path)
    train = Train(tmp_path, before=(draw_nothing, count_texts))
    train.environment = {**train.environment, "LISTINGS": str(tmp_path / "listings")}
    words = [*RUN, f"dataset.path={tmp_path}", "dataloader.folder=tokens", "hardware=this_machine"]
    for command in ([*words, "launch.nproc=2", "epochs=1", "run_name=run"], ["resume", "runs/run", "epochs=2"]):
        train(*command)
        assert listings(tmp_path) == ["launcher"]
