"""Folders of masks from the command line: what is refused, and what `look` shows."""

import base64
import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from launcher.tasks.pixels import palette
from tests.runs import Train, draw_nothing

pytestmark = pytest.mark.system


def test_flags_of_masks_and_folders_of_masks_are_refused_elsewhere(tmp_path: Path) -> None:
    train = Train(tmp_path, before=(draw_nothing,))
    for split in ("train", "val"):
        for part in ("images", "masks"):
            (tmp_path / "data" / split / part).mkdir(parents=True)
            Image.new("L", (8, 8)).save(tmp_path / "data" / split / part / "0.png")
    words = ["recipe=small", "dataset.path=data", "batch_size=1", "launch=cpu"]
    refused = train(*words, code=2)
    assert "has folders of images and masks; set recipe=small_segmentation" in refused.stderr
    refused = train("plan", *words, "task=segmentation", code=2)
    assert "reads no masks, which task=segmentation needs; set recipe=small_segmentation" in refused.stderr
    words = ["recipe=small_segmentation", "dataset.path=data", "batch_size=1", "launch=cpu", "dataset.classes=2"]
    assert "image_folder, 1 training image and 1 validation image" in train("plan", *words).stdout
    refused = train("plan", *words, "dataset=shape_masks", "dataset.classes=11", code=2)
    assert "is not the folder of dataset=shape_masks" in refused.stderr
    assert sorted(one.name for one in tmp_path.iterdir()) == ["data"]


def test_look_shows_masks_over_images(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for part, value in {"images": 0, "masks": 1}.items():
            (tmp_path / "data" / split / part).mkdir(parents=True)
            Image.new("L", (32, 32), value).save(tmp_path / "data" / split / part / "0.png")
    words = ["recipe=small_segmentation", "dataset=image_folder", "dataset.path=data", "dataset.native_size=32"]
    words += ["task.classes=[a,b]", "launch=cpu", "batch_size=1", "dataloader.workers=0"]
    Train(tmp_path, before=(draw_nothing,))("look", *words, "-o", "look.html")
    shown = re.findall(r"data:image/\w+;base64,([\w+/=]+)", (tmp_path / "look.html").read_text())
    assert shown
    for one in shown:
        with Image.open(io.BytesIO(base64.b64decode(one))) as image:
            assert np.array_equal(np.asarray(image.convert("RGB")), np.full((32, 32, 3), palette()[1] // 2))
