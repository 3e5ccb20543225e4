"""Classes without images, and data sets of one class: each command refuses or notes them, with counts."""

import itertools
from pathlib import Path

import pytest

from launcher.data.ffcv.beton import open_beton
from launcher.errors import UserError
from tests.commands import execute, output_of, refused

from .conftest import add, make_loaders, notes, words_for, write_files


@pytest.mark.parametrize("verb", ["plan", "estimate", "prepare", ""])
def test_one_class_alone_is_refused(tmp_path: Path, verb: str) -> None:
    for split in ("train", "val"):
        add(tmp_path, split, "flowers", 8)
    words = words_for(tmp_path)[: 2 if verb == "prepare" else None]
    line = refused(*filter(None, [verb]), *words)
    assert "only one class, flowers" in line
    assert "needs at least two" in line
    assert not (tmp_path / "ffcv").exists()


@pytest.mark.parametrize("words", [["dataloader=synthetic"], ["dataset=image_folder", "dataset.path=/nowhere"]])
def test_one_class_is_refused_without_reading_images(words: list[str]) -> None:
    counts = ["recipe=none", "dataset.classes=1", "dataset.train_samples=640", "dataset.val_samples=64"]
    assert "needs at least two classes" in refused("plan", *words, *counts)


def test_built_in_images_have_ten_classes_in_both_splits() -> None:
    assert "have 10 classes" in refused("plan", "dataset=shapes", "dataset.classes=1")
    few = ["dataset=shapes", "dataset.train_samples=7", "batch_size=7", "schedule.warmup=0ba"]
    assert "3 classes have no training images: square (100 validation images)" in refused("plan", *few)
    code, out, _ = execute("plan", "dataset=shapes", "dataset.val_samples=9")
    assert code == 0
    assert "1 class has no validation images, so top-1 does not cover it: triangle (400 training" in out


def test_a_class_without_training_images_is_refused_with_its_counts(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        add(tmp_path, "train", name, 4)
        add(tmp_path, "val", name, 2)
    (tmp_path / "train" / "empty").mkdir()
    add(tmp_path, "val", "bird", 3)
    expected = r"2 classes have no training images: bird \(3 validation images\), empty \(0 validation images\)"
    with pytest.raises(UserError, match=expected):
        notes(tmp_path)
    with pytest.raises(UserError, match=expected):
        write_files(tmp_path)


def test_a_class_without_validation_images_is_noted_and_shifts_no_label(tmp_path: Path) -> None:
    for name in ("cat", "dog", "emu"):
        add(tmp_path, "train", name, 4)
    add(tmp_path, "val", "cat", 1)
    add(tmp_path, "val", "emu", 3)
    expected = ["1 class has no validation images, so top-1 does not cover it: dog (4 training images)"]
    assert notes(tmp_path) == expected
    _, val = write_files(tmp_path)
    assert open_beton(val).rows["f1"].tolist() == [0, 2, 2, 2]
    assert notes(tmp_path, "dataloader=ffcv") == expected
    for loader in ("torchvision", "ffcv"):
        loaders = make_loaders(tmp_path, f"dataloader={loader}", "dataloader.workers=1")
        assert sorted(label for _, labels, _ in loaders.evaluate for label in labels.tolist()) == [0, 2, 2, 2]
        loaders.close()


def test_ffcv_files_of_different_classes_are_refused(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            add(tmp_path, split, name, 4)
    for file in write_files(tmp_path):
        manifest = file.with_name(file.name + ".json")
        manifest.write_text(manifest.read_text().replace('"cat"', f'"{file.name[:3]}"'))
    with pytest.raises(UserError, match="have different classes: tra, val; remove both"):
        notes(tmp_path, "dataloader=ffcv")
    for file in (tmp_path / "ffcv").glob("*.json"):
        file.unlink()
    assert notes(tmp_path, "dataloader=ffcv") == []


def test_given_files_decide_what_the_images_are(tmp_path: Path) -> None:
    """Plan and doctor describe what the run reads, also with the counts of built-in images beside the files."""
    for split, name in itertools.product(("train", "val"), ("cat", "dog")):
        add(tmp_path, split, name, 4)
    train, val = write_files(tmp_path)
    words = ["dataloader=ffcv", f"dataloader.train={train}", f"dataloader.val={val}", "launch=cpu", "recipe=none"]
    words += ["batch_size=4", "schedule.warmup=0ba"]
    assert "image_folder, 8 training images and 8 validation images" in output_of("plan", *words)
    assert "2 classes, 8 training and 8 validation images" in execute("doctor", *words)[1].replace("\n", " ")
    for verb in ("plan", "estimate", ""):
        line = refused(*filter(None, [verb]), *words, "dataset=shapes")
        assert line.startswith("error: dataset.classes=10: ")
        assert "has 2 classes; set dataset=image_folder" in line
    assert "set dataset=image_folder" in execute("doctor", *words, "dataset=shapes")[1].replace("\n", " ")
