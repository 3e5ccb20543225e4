"""The classes and images that a run has: recorded in its folder, and the same after a resume."""

import json
from pathlib import Path

import pytest

from tests.images import write_images
from tests.runs import SMALL, Here, same

pytestmark = pytest.mark.system
CLASSES = ["1", "2", "10"]


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """A run of three epochs of two steps on folders named by numbers, with a file that is no image."""
    images = write_images(tmp_path / "images", {"train": 11, "val": 3}, CLASSES)
    (images / "train" / "2" / "notes.txt").touch()
    return [*SMALL, "dataset=image_folder", f"dataset.path={images}", "checkpoint.every=1ba"]


def test_a_run_folder_counts_what_was_seen_taken_and_dropped(here: Here, words: list[str]) -> None:
    here(*words, "epochs=1", "schedule.warmup=0ba", "run_name=run")
    splits = json.loads((here.folder / "runs" / "run" / "dataset.json").read_text())["splits"]
    dropped = {"reason": "files without an image extension", "count": 1, "example": "2/notes.txt"}
    assert splits == {
        "train": {"seen": 34, "taken": 33, "dropped": [dropped]},
        "val": {"seen": 9, "taken": 9, "dropped": []},
    }


@pytest.mark.parametrize("values", [["loss=cross_entropy", "loss.logit_adjustment=1"], ["loss.pos_weight=balanced"]])
def test_a_run_on_a_long_tail_has_the_same_bits_after_a_stop(here: Here, tmp_path: Path, values: list[str]) -> None:
    images = write_images(tmp_path / "images", {"train": 22, "val": 3}, ["common"])
    write_images(images, {"train": 2, "val": 3}, ["rare", "seldom"])
    words = [*SMALL, "dataset=image_folder", f"dataset.path={images}", "checkpoint.every=1ba"]
    here(*words, *values, "run_name=whole")
    here(*words, *values, "run_name=cut", stop_after=3, code=143)
    here("resume", "runs/cut")
    assert same(*(here.decided(here.folder / "runs" / name) for name in ("whole", "cut")))
    here(*words, *values[:-1], "run_name=plain")
    assert not same(*(here.decided(here.folder / "runs" / name) for name in ("whole", "plain")))


def test_a_resumed_run_keeps_the_order_of_its_classes(
    here: Here, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions sorted numbers as text: 1, 10, 2."""
    runs = here.folder / "runs"
    here(*words, "run_name=whole")
    here(*words, "run_name=cut", stop_after=3, code=143)
    assert here.state(runs / "cut")["classes"] == CLASSES
    monkeypatch.setattr("launcher.data.sources.folders.in_order", lambda names: sorted({*names}))
    here("resume", "runs/cut")
    assert here.state(runs / "cut")["classes"] == CLASSES
    assert same(here.decided(runs / "whole"), here.decided(runs / "cut"))
