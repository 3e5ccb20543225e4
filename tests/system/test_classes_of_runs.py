"""The classes and images that a run has: recorded in its folder, and kept by a resume."""

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
