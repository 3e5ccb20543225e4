"""Images of 3:1 and 1:3, also turned by EXIF data, shown whole by every command."""

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.runs import Train, draw_nothing, use_tiny

pytestmark = pytest.mark.system

FILL = (124, 116, 104)
WORDS = [
    *("recipe=small", "dataset.path=data", "image.fit=pad", "image.scale=[1,1]", "image.train_size=[32,48]"),
    *("image.eval_size=[32,48]", "algorithms=[progressive_resizing,ema]", "launch=cpu", "batch_size=8", "epochs=2"),
]


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """The command in a folder with images, of which each validation image is also there on the mean colour."""
    for number in range(12):
        pixels = np.random.default_rng(number).integers(0, 256, (16, 48, 3), dtype=np.uint8)
        orientation, shown = [(1, pixels), (1, pixels.transpose(1, 0, 2)[:32]), (6, np.rot90(pixels))][number % 3]
        exif = Image.Exif()
        exif[274] = orientation
        path = tmp_path / "data" / ("train" if number < 8 else "val") / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.ascontiguousarray(shown)).save(path, exif=exif)
        upright = pixels if orientation == 6 else shown
        whole = Image.new("RGB", (48, 32), FILL)
        whole.paste(
            Image.fromarray(np.ascontiguousarray(upright)), ((48 - upright.shape[1]) // 2, (32 - len(upright)) // 2)
        )
        (tmp_path / "padded").mkdir(exist_ok=True)
        whole.save(tmp_path / "padded" / path.name)
    return Train(tmp_path, before=(use_tiny, draw_nothing))


def predicted(train: Train, *words: str) -> list[list[str]]:
    rows = csv.reader(train("predict", "runs/whole", *words, "--csv").stdout.splitlines())
    return [[Path(row[0]).name, *row[1:]] for row in rows]


def test_a_run_shows_whole_images_in_every_command(train: Train) -> None:
    plan = train("plan", *WORDS).stdout
    assert "32 x 48 px" in plan
    train(*WORDS, "run_name=whole")
    assert "4 images" in train("eval", "runs/whole").stdout
    names = [f"{number}.png" for number in range(8, 12)]
    files = [f"data/val/{'ab'[number % 2]}/{number}.png" for number in range(8, 12)]
    assert predicted(train, *files) == predicted(train, *(f"padded/{name}" for name in names))
    train("look", *WORDS, "-o", "look.html")
    train(*WORDS, "dataloader=ffcv", "dataloader.folder=files", "run_name=ffcv")
    line = train(*WORDS, "image.eval_resize=40", code=2).stderr
    assert line == (
        "error: image.eval_resize=40 (command line): image.fit=pad evaluates whole images at image.eval_size; "
        "remove it, or set image.fit=crop\n"
    )
