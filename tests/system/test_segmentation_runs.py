"""A segmentation from a run by the command line to masks by predict, an export and an ONNX file."""

import base64
import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from launcher.records.metrics import read_metrics
from launcher.tasks.pixels import palette
from tests.forked import MODEL_MAIN, fork_checks, python
from tests.runs import Train, draw_nothing

pytestmark = pytest.mark.system

WORDS = [
    *(
        "recipe=small_segmentation",
        "dataset=shape_masks",
        "dataset.path=drawn",
        "dataset.train_samples=32",
        "dataset.val_samples=12",
    ),
    *("dataset.native_size=32", "model.filters=8", "model.levels=3", "launch=cpu"),
    *(
        "launch.nproc=1",
        "batch_size=8",
        "epochs=2",
        "dataloader.workers=0",
        "logger.tensorboard=false",
        "image.eval_flip_average=true",
    ),
]


def test_a_run_is_evaluated_exported_and_writes_masks(tmp_path: Path) -> None:
    train = Train(tmp_path, before=(draw_nothing, fork_checks))
    done = train(*WORDS, "run_name=figures")
    assert "mean IoU" in done.stdout
    samples = json.loads((tmp_path / "runs" / "figures" / "samples.json").read_text())
    assert len(samples) == 12
    for one in samples:
        with Image.open(io.BytesIO(base64.b64decode(one["image"].partition(",")[2]))) as image:
            assert image.size == (3 * 32, 32)
    evaluated = json.loads(train("eval", "runs/figures", "--by-class", "--json", "-o", "by").stdout)
    rows = {row["name"]: row for row in csv.DictReader((tmp_path / "by" / "by_class.csv").open())}
    assert len(rows) == 11
    ious = [float(row["iou"]) for row in rows.values() if row["iou"]]
    assert evaluated["metrics"]["miou"] == pytest.approx(sum(ious) / len(ious))
    assert "Most wrong pixels" in (tmp_path / "by" / "gallery.html").read_text()
    other = json.loads(train("eval", "runs/figures", "dataset.path=drawn", "--json").stdout)
    assert other["metrics"] == pytest.approx(evaluated["metrics"])

    files = [tmp_path / "drawn" / "val" / "images" / "000000.jpg", tmp_path / "wide.png"]
    with Image.open(files[0]) as image:
        image.resize((70, 48)).save(files[1])
    exports: dict[str, list[str]] = {"export": [], "onnx": ["--onnx"]}
    for name, flags in exports.items():
        assert "on 12 validation images" in train("export", "runs/figures", *flags, "-o", name).stderr
    ours = train("predict", "runs/figures", *map(str, files), "--masks", "masks", "--csv", "--top", "11").stdout
    assert train("predict", "export", *map(str, files), "--masks", "again", "--csv", "--top", "11").stdout == ours
    masks = [Image.open(tmp_path / "masks" / f"{file.stem}.png") for file in files]
    assert [(mask.mode, mask.size) for mask in masks] == [("P", (32, 32)), ("P", (70, 48))]
    for folder, number in (("masks", 2), (".", 1)):
        before = files[1].read_bytes()
        refused = train("predict", "runs/figures", *map(str, files), "--masks", folder, code=2).stderr
        assert "would overwrite" in refused
        assert refused.count("and 1 more") == number - 1
        assert files[1].read_bytes() == before
    shares = {
        row["class"]: float(row["share"]) for row in csv.DictReader(ours.splitlines()) if row["file"] == str(files[0])
    }
    counts = np.bincount(np.asarray(masks[0]).reshape(-1), minlength=11) / 32**2
    assert shares == pytest.approx(
        {name: counts[n] for n, name in enumerate(_classes(tmp_path)) if counts[n]}, abs=1e-6
    )
    for name in exports:
        python(MODEL_MAIN, f"{name}/model.py", str(files[0]), folder=tmp_path)
        same = np.asarray(Image.open(tmp_path / f"{files[0].stem}_mask.png")) == np.asarray(masks[0])
        assert same.mean() > 0.99
    train("look", *WORDS, "-o", "look.html")


def _classes(folder: Path) -> list[str]:
    names: list[str] = json.loads((folder / "export" / "model_card.json").read_text())["classes"]
    return names


def test_flags_of_masks_and_folders_of_masks_are_refused_elsewhere(tmp_path: Path) -> None:
    train = Train(tmp_path, before=(draw_nothing, fork_checks))
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
    Train(tmp_path, before=(draw_nothing, fork_checks))("look", *words, "-o", "look.html")
    shown = re.findall(r"data:image/\w+;base64,([\w+/=]+)", (tmp_path / "look.html").read_text())
    assert shown
    for one in shown:
        with Image.open(io.BytesIO(base64.b64decode(one))) as image:
            assert np.array_equal(np.asarray(image.convert("RGB")), np.full((32, 32, 3), palette()[1] // 2))


BRATS = [
    *("recipe=unet_brats", "dataset.path=data", "dataset.native_size=24", "model.filters=4", "model.levels=3"),
    *(
        "task.classes={none:0,core:1,edema:2,enhancing:4}",
        "batch_size=4",
        "epochs=4",
        "launch=cpu",
        "launch.nproc=1",
        "dataloader.workers=0",
        "logger.tensorboard=false",
    ),
]


def write_slices(folder: Path) -> None:
    """Write slices [24, 24, 4] of noise with masks of BraTS' values: 12 for training, and three and three others."""
    random = np.random.default_rng(0)
    for number in range(18):
        place, mask = "train" if number < 12 else "val" if number < 15 else "test", np.zeros((24, 24))
        mask[random.integers(0, 12) :, :12] = number % 4
        slices = random.normal(size=(24, 24, 4)) + mask[..., None] * [1, -1, 0.5, 0]
        for part in ("images", "masks"):
            (folder / place / part).mkdir(parents=True, exist_ok=True)
        np.save(folder / place / "images" / f"{number}.npy", slices.astype(np.float32))
        values = np.array([0, 1, 2, 4], np.uint8)[mask.astype(int)]
        Image.fromarray(values).save(folder / place / "masks" / f"{number}.png")


def test_slices_of_four_channels_train_by_the_recipe_of_brats(tmp_path: Path) -> None:
    write_slices(tmp_path / "data")
    train, words = Train(tmp_path, before=(draw_nothing, fork_checks)), [*BRATS, "dataset.test_path=data/test"]
    assert "12 training images" in train("plan", *words).stdout
    train(*words, "run_name=brats")
    rows = read_metrics(tmp_path / "runs" / "brats" / "metrics.jsonl")
    losses = [row["loss"] for row in rows if row["kind"] == "epoch"]
    assert losses[-1] < losses[0]
    (tested,) = [row for row in rows if row["kind"] == "test"]
    again = json.loads(train("eval", "runs/brats", "dataset.path=data/test", "--json").stdout)
    assert again["metrics"] == pytest.approx(tested["metrics"])
    file = "data/val/images/12.npy"
    train("predict", "runs/brats", file, "--masks", "masks")
    mask = np.asarray(Image.open(tmp_path / "masks" / "12.png"))
    assert {*np.unique(mask)} <= {0, 1, 2, 4}
    for name, flags in {"export": [], "onnx": ["--onnx"]}.items():
        train("export", "runs/brats", *flags, "-o", name)
        python(MODEL_MAIN, f"{name}/model.py", file, folder=tmp_path)
        assert np.array_equal(np.asarray(Image.open(tmp_path / "12_mask.png")), mask)
    train("look", *words, "-o", "look.html")
