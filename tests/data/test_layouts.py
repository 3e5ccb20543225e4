"""Folders as users and other programs leave them: the images that are read, and the notes on the others."""

import os
import shutil
import tarfile
import zlib
from pathlib import Path

import fsspec
import pytest
from PIL import Image

from launcher.config.compose import compose
from launcher.data.inspection import inspect_data
from launcher.data.listing import image_files
from launcher.data.sources.find import open_source, read_splits
from launcher.data.workers import quiet
from launcher.errors import UserError

from .conftest import make_loaders, notes, words_for, write_files


def write(path: Path, *names: str) -> Path:
    """Images of different colours."""
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 32), zlib.crc32(name.encode()) & 0xFFFFFF).save(path / name)
    return path


def two_classes(path: Path, val: str = "val") -> Path:
    names = [
        f"{split}/{name}/{number}.png" for split in ("train", val) for name in ("cat", "dog") for number in "12345"
    ]
    return write(path, *names)


def test_images_below_class_folders_are_read_and_counted(tmp_path: Path) -> None:
    folder = write(
        two_classes(tmp_path / "pets"), "train/cat/persian/1.png", "train/cat/persian/old/9.png", "val/dog/a/1.png"
    )
    scanned = open_source(str(folder), "train", quiet)
    assert [file for file in scanned.names if file.count("/") > 1] == ["cat/persian/1.png", "cat/persian/old/9.png"]
    assert scanned.labels.tolist() == [0] * 7 + [1] * 5
    deep = "3 images in folders below their class folder, such as train/cat/persian/1.png"
    assert notes(folder) == [f"{deep}; dataset.class_level=last, or path, makes classes of these folders"]
    write_files(folder)
    for loader in ("torchvision", "ffcv"):
        loaders = make_loaders(folder, f"dataloader={loader}", "dataloader.workers=1")
        assert sum(len(labels) for _, labels, _ in loaders.evaluate) == 11
        loaders.close()


@pytest.mark.parametrize("level", ["first", "last", "path"])
def test_classes_of_nested_folders_are_the_first_last_or_all_folders(level: str, tmp_path: Path) -> None:
    classes = {
        "first": ["bird", "cat"],
        "last": ["cat", "finch", "other", "persian"],
        "path": ["bird/finch", "bird/other", "cat", "cat/other", "cat/persian"],
    }[level]
    names = ["bird/finch/1.png", "bird/other/1.png", "cat/1.png", "cat/other/1.png", "cat/persian/1.png"]
    folder = write(tmp_path / "pets", *(f"{split}/{name}" for split in ("train", "val") for name in names))
    with tarfile.open(tmp_path / "pets.tar", "w") as tar:
        tar.add(folder, "pets")
    fsspec.filesystem("memory").put(str(folder), "/nested", recursive=True)
    words = [f"dataset.class_level={level}", "batch_size=4"]
    for path in (folder, tmp_path / "pets.tar", "memory://nested"):
        train, val = read_splits(compose([*words_for(folder, *words), f"dataset.path={path}"]).config)
        for split in (train, val):
            labels = {os.fsdecode(file): split.classes[n] for file, n in zip(split.names, split.labels, strict=True)}
            parts = {name: name.split("/")[:-1] for name in names}
            wanted = {"first": lambda p: p[0], "last": lambda p: p[-1], "path": "/".join}[level]
            assert labels == {name: wanted(parts[name]) for name in names}
            assert split.classes == classes
            assert split.labels.tolist() == sorted(split.labels.tolist())
    assert bool(notes(folder, *words)) == (level == "first")
    (tmp_path / "pets.csv").write_text("image,label\npets/train/cat/1.png,cat\n")
    config = compose(words_for(tmp_path / "pets.csv", *words, "dataset.val_split=0.5")).config
    if level != "first":
        with pytest.raises(UserError, match=f"class_level={level}.* has labels, not folders; set first"):
            read_splits(config)


def test_a_folder_of_images_with_one_table_is_that_table(tmp_path: Path) -> None:
    folder = write(tmp_path / "pets", "images/1.png", "images/2.png", "images/3.png", "images/4.png")
    rows = "".join(f"images/{number}.png,{name}\n" for number, name in enumerate(("cat", "dog", "cat", "dog"), 1))
    (folder / "labels.csv").write_text(f"image,label\n{rows}")
    config = compose(words_for(folder, "dataset.val_split=0.5", "batch_size=2")).config
    assert inspect_data(config, must_exist=True).config.dataset.classes == 2
    train, val = read_splits(config)
    assert sorted([*train.names, *val.names]) == [
        f"{n}/images/{i}.png" for n, i in zip(("cat", "cat", "dog", "dog"), (1, 3, 2, 4), strict=True)
    ]
    # note: beside class folders it is none
    for file in (folder / "images").glob("*.png"):
        file.unlink()
    write(folder, "images/cat/1.png", "images/dog/1.png", "images/dog/2.png", "images/cat/2.png")
    assert read_splits(config)[0].classes == ["cat", "dog"]
    assert len(read_splits(config)[0].names) == 2


def test_images_to_predict_are_those_of_files_and_folders(tmp_path: Path) -> None:
    folder = write(two_classes(tmp_path / "pets"), "train/cat/@eaDir/1.jpg/SYNO.jpg")
    (folder / "train" / "cat" / "notes.txt").touch()
    (folder / "train" / "cat" / "gone.png").symlink_to("nowhere")
    images, dropped = image_files([f"{folder}/train/cat/", f"{folder}/val/dog/1.png"])
    assert images == [*(f"{folder}/train/cat/{number}.png" for number in "12345"), f"{folder}/val/dog/1.png"]
    assert [*dropped.values()] == [(1, f"{folder}/train/cat/gone.png"), (1, f"{folder}/train/cat/notes.txt")]


@pytest.mark.parametrize("val", ["valid", "validation", "test"])
def test_other_names_of_the_validation_folder_are_read_and_noted(tmp_path: Path, val: str) -> None:
    folder = two_classes(tmp_path / "pets", val)
    assert notes(folder) == [f"no {folder}/val: validating on the images of {folder}/{val}"]
    assert len(open_source(str(folder), "val", quiet)) == 10


def test_of_several_validation_folders_the_first_is_read_and_the_others_are_noted(tmp_path: Path) -> None:
    folder = two_classes(two_classes(tmp_path, "valid"), "test")
    ignored = f"ignoring {folder}/test; dataset.test_path={folder}/test evaluates the finished run on it"
    assert notes(folder) == [f"no {folder}/val: validating on the images of {folder}/valid", ignored]
    assert notes(folder, f"dataset.test_path={folder}/test") == notes(folder)[:1]
    with pytest.raises(UserError, match=rf"{folder} holds validation images already \(valid\); remove the key"):
        notes(folder, "dataset.val_split=0.2")
    shutil.rmtree(folder / "valid")
    assert notes(folder, "dataset.val_split=0.2")[1:] == [ignored]
