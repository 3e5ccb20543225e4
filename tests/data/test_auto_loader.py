"""dataloader=auto: FFCV files beside the images while they are of these, otherwise the images."""

import os
import shutil
import tarfile
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from launcher.config.compose import compose
from launcher.config.layers import get
from launcher.data.ffcv import inspection
from launcher.data.ffcv.beton import manifest_path
from tests.images import write_images

from .conftest import words_for, write_files


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Two classes of four training and two validation images."""
    return write_images(tmp_path / "ffcv" / "images", {"train": 4, "val": 2})


def chosen(folder: Path, *words: str) -> tuple[str, list[str]]:
    composed = compose(words_for(folder, "recipe=mild", *words))
    return composed.config.dataloader.name, [note for note in composed.notes if "FFCV" in note or "prepare" in note]


def test_files_beside_the_images_are_read_by_default_while_they_are_of_these(images: Path) -> None:
    assert chosen(images) == ("torchvision", [])
    train, val = write_files(images)
    assert chosen(images) == (
        "ffcv",
        [f"reading the FFCV files in {train.parent}; dataloader=torchvision reads the images instead"],
    )
    others = (["dataset.folds=2", "dataset.fold=1"], ["dataset.channels=4"], ["dataset.path=s3://mine/pets"])
    for words in (["dataloader=torchvision"], *others):
        assert chosen(images, *words) == ("torchvision", [])
    assert chosen(images, "dataset.exif_orientation=false")[0] == "torchvision"
    # note: a copy of the folder has newer folders of the same images
    first = sorted((images / "train").glob("*/*"))[0]
    later = manifest_path(train).stat().st_mtime + 10
    os.utime(first.parent, (later, later))
    assert chosen(images)[0] == "ffcv"
    first.rename(first.with_name(f"new_{first.name}"))
    os.utime(first.parent, (later, later))
    assert chosen(images) == (
        "torchvision",
        [f"{train.parent} has other images or rotations; remove it to run train prepare"],
    )
    first.with_name(f"new_{first.name}").rename(first)
    os.utime(first.parent, (later, later))
    assert chosen(images)[0] == "ffcv"
    manifest_path(val).unlink()
    assert chosen(images) == ("torchvision", [])


def test_files_of_an_image_that_was_overwritten_are_not_read(images: Path) -> None:
    write_files(images)
    image = next((images / "train").glob("*/*"))
    before = image.read_bytes()
    image.write_bytes(before + b"more")
    assert chosen(images)[0] == "torchvision"
    image.write_bytes(before)
    assert chosen(images)[0] == "ffcv"


@pytest.mark.parametrize("below", [".", "data"])
def test_files_of_an_archive_that_was_replaced_are_not_read(
    images: Path, below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "_ALWAYS_LISTED", 0)
    shards = tmp_path / "shards"
    (shards / below).mkdir(parents=True, exist_ok=True)

    def pack(*excluded: Path) -> None:
        for split in ("train", "val"):
            with tarfile.open(shards / below / f"{split}-000.tar", "w") as archive:
                for image in {*(images / split).glob("*/*")}.difference(excluded):
                    archive.add(image, image.relative_to(images / split))

    pack()
    write_files(shards)
    assert chosen(shards)[0] == "ffcv"
    pack(next((images / "train").glob("*/*")))
    assert chosen(shards)[0] == "torchvision"


def test_files_of_a_drawn_validation_split_are_those_of_its_seed(images: Path) -> None:
    shutil.rmtree(images / "val")
    drawn = ("dataset.val_split=0.25", "seed=3")
    write_files(images, *drawn)
    assert [chosen(images, *words)[0] for words in (drawn, (drawn[0], "seed=4"))] == ["ffcv", "torchvision"]
    later = time.time() + 10
    os.utime(next((images / "train").iterdir()), (later, later))
    assert chosen(images, *drawn)[0] == "ffcv"


@pytest.mark.parametrize(
    ("word", "option"),
    [
        ("files.max_side=400", "ffcv"),
        ("os_cache=true", "ffcv"),
        ("decoder=ffcv", "ffcv"),
        ("folder=/nvme", "ffcv"),
        ("shuffle_buffer=8", "torchvision"),
        ("workers=0", "torchvision"),
    ],
)
def test_a_key_of_one_loader_chooses_it_and_keeps_its_value(images: Path, word: str, option: str) -> None:
    write_files(images)
    composed = compose(words_for(images, "recipe=mild", f"dataloader.{word}"))
    assert composed.config.dataloader.name == option
    key, _, value = word.partition("=")
    assert str(get(asdict(composed.config.dataloader), key)).lower() == value
    assert composed.origins[f"dataloader.{key}"] == "command line"


def test_keys_of_both_loaders_are_kept(images: Path) -> None:
    words = words_for(images, "recipe=mild", "dataloader.workers=3", "dataloader.prefetch=5")
    for _ in range(2):
        loader = compose(words).config.dataloader
        assert (loader.workers, loader.prefetch) == (3, 5)  # type: ignore[attr-defined]
        write_files(images)
    assert loader.name == "ffcv"
