"""`train prepare` is stopped, and continues with the finished images."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.runs import Train, ended, processes_of, wait_for

pytestmark = pytest.mark.system

IMAGES = 500


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Write class folders of many links to one image."""
    one = tmp_path / "one.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 300, 3), dtype=np.uint8)).save(one)
    for split, count in (("train", IMAGES), ("val", 4)):
        for number in range(count):
            folder = tmp_path / "images" / split / f"class{number % 2}"
            folder.mkdir(parents=True, exist_ok=True)
            os.link(one, folder / f"{number}.jpg")
    return tmp_path / "images"


def test_preparation_stops_and_continues_to_the_same_bytes(train: Train, images: Path) -> None:
    words = ["prepare", "dataset=image_folder", f"dataset.path={images}", "dataloader.workers=1"]
    folder = train.folder / "files"
    for number, size in ((signal.SIGTERM, 1e7), (signal.SIGUSR1, 3e7), (signal.SIGHUP, 5e7)):
        process = train.start(*words, f"dataloader.folder={folder}")
        wait_for(lambda size=size: any(path.stat().st_size > size for path in folder.glob("train*.partial")))
        # note: all processes receive the signal, as from a closed terminal
        for one in processes_of(train.folder / "runs" / "none"):
            one.send_signal(number)
        output, _ = ended(process, 143)
        assert "run the same command to continue" in output
        assert not list(folder.glob("*.beton"))
        assert not processes_of(train.folder / "runs" / "none")
    train(*words, f"dataloader.folder={folder}")
    train(*words, f"dataloader.folder={train.folder / 'uninterrupted'}")
    uninterrupted = {path.name: path.read_bytes() for path in (train.folder / "uninterrupted").iterdir()}
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == uninterrupted
