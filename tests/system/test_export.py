"""Runs are trained, exported, and used in a process that cannot import this project."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.forked import MODEL_MAIN, python
from tests.runs import Train, draw_nothing, fork_checks

pytestmark = pytest.mark.system

CLASSES = {"blau ü": (40, 60, 220), "green": (50, 190, 60), "red, dark": (150, 20, 30)}
WORDS = [
    *("dataset=image_folder", "dataset.path=images", "dataset.native_size=40", "model=resnet18", "launch=cpu"),
    *("launch.nproc=1", "batch_size=8", "schedule.warmup=0ba", "dataloader.workers=0", "logger.tensorboard=false"),
    *("algorithms.ema.half_life=3ba", "algorithms.ema.update_interval=1ba", "epochs=2", "optimizer.scale_lr=off"),
    # note: few steps suffice if each block starts as its shortcut
    *("optimizer.lr=0.05", "model.residual_batchnorm_weight=0"),
]
# Code of a user: it reads the image files and compares the names of classes.
USER = """
import importlib, sys, pathlib
sys.modules["launcher"] = None
from PIL import Image
import torch
files = sorted(pathlib.Path(sys.argv[1]).glob("*/*"))
for folder in sys.argv[2:]:
    sys.modules.pop("model", None)
    sys.path.insert(0, folder)
    from model import CLASSES, load, predict, transform
    logits = predict(load(), torch.stack([transform(Image.open(file)) for file in files]))
    print(sum(CLASSES[number] == file.parent.name for file, number in zip(files, logits.argmax(1), strict=True)))
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write images of three colours, with so much noise that some are misclassified."""
    random = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("data") / "images"
    for split, count in (("train", 16), ("val", 20)):
        for name, colour in CLASSES.items():
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                shape = tuple(random.integers(40, 70, 2))
                noise = random.normal(0, 70, (*shape, 3)) + random.normal(0, 60, 3)
                pixels = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{number}.png")
    return folder


def test_exports_reach_the_recorded_top1_without_this_project(tmp_path: Path, images: Path) -> None:
    (tmp_path / "images").symlink_to(images)
    right, recipes = [], ("mild", "medium", "hot")
    for recipe in recipes:
        # note: only mild's export is checked in a new process, as for a user
        train = Train(tmp_path, before=(draw_nothing,) if recipe == "mild" else (draw_nothing, fork_checks))
        train(f"recipe={recipe}", *WORDS, f"run_name={recipe}")
        done = train("export", f"runs/{recipe}", "--best", "-o", recipe)
        assert done.stdout == f"{recipe}/model.safetensors\n"
        card = json.loads((tmp_path / recipe / "model_card.json").read_text())
        assert 0.5 < card["top1"] < 1
        assert card["classes"] == list(CLASSES)
        assert f"checked without this project: top-1 {card['top1']:.2%} on 60 validation images" in done.stderr
        right.append(str(round(60 * card["top1"])))
    assert python(USER, str(images / "val"), *recipes, folder=tmp_path).split() == right

    file = images / "val" / "green" / "0.png"
    lines = python(MODEL_MAIN, "hot/model.py", str(file), folder=tmp_path).splitlines()
    assert lines[0] == str(file)
    assert {line.split("%")[1].strip() for line in lines[1:]} == set(CLASSES)
