"""Folders as users and other programs leave them: the images that are read, and the notes on the others."""

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
from launcher.data.sources.find import open_source
from launcher.data.workers import quiet
from launcher.errors import UserError

from .conftest import make_loaders, words_for, write_files

LEFTOVERS = ["train/__MACOSX/1.jpg", "train/cat/@eaDir/1.jpg/SYNO.jpg", "train/.ipynb_checkpoints/1.jpg"]


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


def notes(path: Path, *words: str) -> list[str]:
    return list(inspect_data(compose(words_for(path, *words)).config, must_exist=True).notes)


def test_images_below_class_folders_are_read_and_counted_by_each_source(tmp_path: Path) -> None:
    folder = write(
        two_classes(tmp_path / "pets"), "train/cat/persian/1.png", "train/cat/persian/old/9.png", "val/dog/a/1.png"
    )
    scanned = open_source(str(folder), "train", quiet)
    assert [file for file in scanned.files if file.count("/") > 1] == ["cat/persian/1.png", "cat/persian/old/9.png"]
    assert scanned.labels.tolist() == [0] * 7 + [1] * 5
    assert notes(folder) == ["3 images in folders below their class folder, such as train/cat/persian/1.png"]
    with tarfile.open(tmp_path / "pets.tar", "w") as tar:
        tar.add(folder, "pets")
    memory = fsspec.filesystem("memory")
    memory.put(str(folder), "/pets", recursive=True)
    for split in ("train", "val"):
        here = open_source(str(folder), split, quiet)
        for path in (str(tmp_path / "pets.tar"), "memory://pets"):
            there = open_source(path, split, quiet)
            assert (there.files, there.classes, there.labels.tolist()) == (
                here.files,
                here.classes,
                here.labels.tolist(),
            )
    write_files(folder)
    for loader in ("torchvision", "ffcv"):
        loaders = make_loaders(folder, f"dataloader={loader}", "dataloader.workers=1")
        assert sum(len(labels) for _, labels, _ in loaders.evaluate) == 11
        loaders.close()


def test_files_of_other_programs_are_neither_classes_nor_images(tmp_path: Path) -> None:
    folder = write(two_classes(tmp_path / "pets"), *LEFTOVERS)
    scanned = open_source(str(folder), "train", quiet)
    assert (scanned.classes, len(scanned.files), scanned.dropped) == (["cat", "dog"], 10, {})
    (folder / "train" / "cat" / "notes.txt").touch()
    (folder / "train" / "cat" / "gone.png").symlink_to("nowhere")
    images, dropped = image_files([f"{folder}/train/cat/", f"{folder}/val/dog/1.png"])
    assert images == [*(f"{folder}/train/cat/{number}.png" for number in "12345"), f"{folder}/val/dog/1.png"]
    assert [*dropped.values()] == [(1, f"{folder}/train/cat/gone.png"), (1, f"{folder}/train/cat/notes.txt")]
    with tarfile.open(tmp_path / "pets.tar", "w") as tar:
        tar.add(folder, "pets")
    assert len(open_source(str(tmp_path / "pets.tar"), "train", quiet).files) == 10


@pytest.mark.parametrize("val", ["valid", "validation", "test"])
def test_other_names_of_the_validation_folder_are_read_and_noted(tmp_path: Path, val: str) -> None:
    folder = two_classes(tmp_path / "pets", val)
    assert notes(folder) == [f"no {folder}/val: validating on the images of {folder}/{val}"]
    loaders = make_loaders(folder, "dataloader.workers=0")
    assert sum(len(labels) for _, labels, _ in loaders.evaluate) == 10
    loaders.close()
    with tarfile.open(tmp_path / "pets.tar", "w") as tar:
        tar.add(folder, "pets")
    memory = fsspec.filesystem("memory")
    memory.put(str(folder), f"/pets-{val}", recursive=True)
    for path in (str(folder), str(tmp_path / "pets.tar"), f"memory://pets-{val}"):
        assert len(open_source(path, "val", quiet).files) == 10


def test_of_several_validation_folders_the_first_is_read_and_the_others_are_noted(tmp_path: Path) -> None:
    folder = two_classes(two_classes(tmp_path, "valid"), "test")
    ignored = f"ignoring {folder}/test; dataset.test_path={folder}/test evaluates the finished run on it"
    assert notes(folder) == [f"no {folder}/val: validating on the images of {folder}/valid", ignored]
    assert notes(folder, f"dataset.test_path={folder}/test") == notes(folder)[:1]
    with pytest.raises(UserError, match=f"{folder}/valid holds validation images already"):
        notes(folder, "dataset.val_split=0.2")
    shutil.rmtree(folder / "valid")
    assert notes(folder, "dataset.val_split=0.2")[1:] == [ignored]
