"""Duplicate images: counted with an example; a plan reads few bytes, the doctor all."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from launcher.config.compose import compose
from launcher.data import duplicates
from launcher.data.sources.find import splits
from launcher.doctor.examine import examine_data
from tests.commands import output_of
from tests.images import write_images

from .conftest import notes as quick
from .conftest import words_for


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    return write_images(tmp_path / "pets", {"train": 6, "val": 3})


def thorough(path: Path, *words: str) -> list[str]:
    findings = examine_data(compose(words_for(path, *words)).config)
    return [finding.observation for finding in findings if finding.name == "duplicates"]


def copied(path: Path) -> None:
    shutil.rmtree(path / "val")
    shutil.copytree(path / "train", path / "val")


def linked(path: Path) -> None:
    shutil.rmtree(path / "val")
    (path / "val").symlink_to("train")


def hard_linked(path: Path) -> None:
    shutil.rmtree(path / "val")
    shutil.copytree(path / "train", path / "val", copy_function=os.link)


@pytest.mark.parametrize("leak", [copied, linked, hard_linked])
def test_validation_images_that_are_training_images_are_counted(pets: Path, leak: Callable[[Path], None]) -> None:
    assert (quick(pets), thorough(pets)) == ([], ["none, by size and content"])
    leak(pets)
    note = "12 of 12 validation images are training images too, so accuracy is too high: "
    note += f"{pets}/val/cat/0.jpg = {pets}/train/cat/0.jpg"
    assert quick(pets) == thorough(pets) == [note]
    assert note in " ".join(output_of("plan", *words_for(pets, "batch_size=4")).split())


def test_copies_within_a_split_and_in_other_classes_are_counted(pets: Path) -> None:
    shutil.copy(pets / "train" / "cat" / "0.jpg", pets / "train" / "cat" / "copy.jpg")
    shutil.copy(pets / "train" / "cat" / "0.jpg", pets / "train" / "dog" / "other.jpg")
    shutil.copy(pets / "val" / "dog" / "1.jpg", pets / "val" / "dog" / "2.jpg")
    expected = [
        f"2 training images are copies of others: {pets}/train/cat/copy.jpg = {pets}/train/cat/0.jpg",
        f"1 validation image is a copy of another: {pets}/val/dog/2.jpg = {pets}/val/dog/1.jpg",
        f"1 image with a copy in another class: {pets}/train/dog/other.jpg = {pets}/train/cat/0.jpg",
    ]
    assert quick(pets) == thorough(pets) == expected


def test_test_images_are_compared_with_training_images(pets: Path, tmp_path: Path) -> None:
    shutil.copytree(pets / "train", tmp_path / "test")
    word = f"dataset.test_path={tmp_path / 'test'}"
    note = "12 of 12 test images are training images too, so accuracy is too high: "
    note += f"{tmp_path}/test/cat/0.jpg = {pets}/train/cat/0.jpg"
    assert quick(pets, word) == thorough(pets, word) == [note]


def test_equal_sizes_and_equal_ends_are_not_copies(pets: Path) -> None:
    pixels = np.full((64, 64, 3), 255, np.uint8)
    for number, name in enumerate(("train/cat", "train/dog", "val/cat")):
        pixels[0, 0] = number
        Image.fromarray(pixels).save(pets / name / "blank.ppm")
    sizes = {(pets / name / "blank.ppm").stat().st_size for name in ("train/cat", "train/dog", "val/cat")}
    assert len(sizes) == 1
    assert (quick(pets), thorough(pets)) == ([], ["none, by size and content"])


def test_images_drawn_for_validation_are_compared_with_the_others(pets: Path) -> None:
    shutil.rmtree(pets / "val")
    for number in range(6):
        shutil.copy(pets / "train" / "cat" / f"{number}.jpg", pets / "train" / "cat" / f"{number}b.jpg")
    both = splits(compose(words_for(pets, "dataset.val_split=0.3")).config.dataset, 42, "class")
    drawn = {file.removesuffix(".jpg").removesuffix("b") for file in both[1].names if file.startswith("cat")}
    rest = {file.removesuffix(".jpg").removesuffix("b") for file in both[0].names if file.startswith("cat")}
    assert (leaked := len(drawn & rest)) > 0
    assert any(
        note.startswith(f"{leaked} of {len(both[1].names)} validation")
        for note in thorough(pets, "dataset.val_split=0.3")
    )


def test_a_plan_reads_little_of_a_large_folder_and_finds_a_copied_split(
    pets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied(pets)
    read: list[str] = []
    digest = duplicates._digest
    monkeypatch.setattr(duplicates, "_digest", lambda path, start=0: (read.append(path), digest(path, start))[1])
    monkeypatch.setattr(duplicates, "_MOST_IMAGES", 20)
    monkeypatch.setattr(duplicates, "_MOST_NAMES", 3)
    found, partly = quick(pets)
    assert found.startswith("at least 3 of 12 validation images are training images too")
    assert partly == "looked for duplicates among 6 of 24 images; train doctor compares all"
    assert len(set(read)) == 6
    monkeypatch.undo()
    monkeypatch.setattr(duplicates, "_MOST_BYTES", 5000)
    assert 0 < int(quick(pets)[0].removeprefix("at least ").split()[0]) < 12
    assert thorough(pets)[0].startswith("12 of 12")
