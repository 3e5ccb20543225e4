"""Unreadable images: listed at once, or skipped and counted, the same in every part of a run."""

import errno
import os
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from PIL import features

from launcher.config.compose import compose
from launcher.data import decode
from launcher.data.inspection import inspect_data
from launcher.data.pixel_types import RGB
from launcher.data.sources.find import splits
from launcher.data.unreadable import read_skipped, unreadable, write_skipped
from launcher.data.workers import quiet
from launcher.doctor.examine import examine_data
from launcher.errors import UserError
from launcher.files.disk import DiskError
from tests.commands import execute
from tests.images import write_images

from .conftest import inspected, words_for, write_files

BAD = {"train/cat/cut.jpg": "truncated", "train/dog/empty.png": "not a JPEG", "val/dog/text.gif": "not a JPEG"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes of six and three whole images, and three that are not."""
    root = write_images(tmp_path / "images", {"train": 6, "val": 3}, size=(40, 48))
    whole = (root / "train" / "cat" / "0.jpg").read_bytes()
    (root / "train" / "cat" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (root / "train" / "dog" / "empty.png").touch()
    (root / "val" / "dog" / "text.gif").write_text("no image")
    return root


def reasons(folder: Path) -> dict[str, str]:
    dataset = compose(words_for(folder)).config.dataset
    return unreadable(splits(dataset, 0, "class"), RGB, quiet)


@pytest.mark.parametrize("at_once", [2, 64])
def test_all_unreadable_images_are_listed_with_reasons(
    folder: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr("launcher.data.unreadable._ITEMS_A_TASK", at_once)
    by_file = reasons(folder)
    assert [*by_file] == [*BAD]
    assert all(reason in by_file[file] for file, reason in BAD.items())


def test_skipped_images_are_counted_and_noted(folder: Path) -> None:
    inspection = inspected(folder, "dataset.skip_bad=true")
    assert (inspection.config.dataset.train_samples, inspection.config.dataset.val_samples) == (12, 6)
    assert [*inspection.skipped] == [*BAD]
    assert inspection.notes[0].startswith(
        "dataset.skip_bad=true: skipping 3 images that cannot be decoded: train/cat/cut.jpg ("
    )
    assert len([note for note in inspection.notes if "cannot be decoded" in note]) == 1
    plain = inspected(folder)
    assert (plain.config.dataset.train_samples, plain.config.dataset.val_samples) == (14, 7)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EMFILE])
def test_a_failing_disk_makes_no_image_unreadable(folder: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    fails, real = [True], open

    def failing(*arguments: Any, **named: Any) -> Any:
        if fails and str(arguments[0]).endswith("train/cat/1.jpg"):
            fails.pop()
            raise OSError(number, os.strerror(number), arguments[0])
        return real(*arguments, **named)

    monkeypatch.setattr("launcher.files.disk.PAUSES", (0.0, 0.0))
    monkeypatch.setattr("builtins.open", failing)
    assert [*reasons(folder)] == [*BAD], "a repetition succeeds"
    fails += [True] * 3
    with pytest.raises(DiskError, match=rf"train/cat/1\.jpg: {os.strerror(number)}; "):
        reasons(folder)


def test_a_class_without_readable_images_is_refused(folder: Path) -> None:
    for number in range(6):
        (folder / "train" / "dog" / f"{number}.jpg").write_bytes(b"broken")
    with pytest.raises(UserError, match=r"no training images: dog \(3 validation images\)"):
        inspected(folder, "dataset.skip_bad=true")


def test_a_resumed_run_skips_the_images_of_its_own_list(folder: Path, tmp_path: Path) -> None:
    config = compose(words_for(folder, "dataset.skip_bad=true")).config
    write_skipped(tmp_path / "skipped.json", {"train/cat/1.jpg": "truncated"})
    listed = read_skipped(tmp_path / "skipped.json", config.dataset)
    again = inspect_data(config, must_exist=True, skipped=listed).config.dataset
    assert (again.train_samples, again.val_samples) == (13, 7)
    (tmp_path / "skipped.json").write_text("[1, ")
    with pytest.raises(UserError, match="the list of skipped images"):
        read_skipped(tmp_path / "skipped.json", config.dataset)


def test_doctor_lists_all_unreadable_images(folder: Path) -> None:
    findings = [finding for finding in examine_data(compose(words_for(folder)).config) if finding.name == "images"]
    assert {finding.status for finding in findings} == {"problem"}
    assert findings[0].observation == "3 of 21 cannot be decoded"
    assert "dataset.skip_bad=true" in findings[0].advice
    assert [finding.observation.split(" (")[0] for finding in findings[1:]] == [str(folder / file) for file in BAD]
    skipped = examine_data(compose(words_for(folder, "dataset.skip_bad=true")).config)
    assert {finding.status for finding in skipped if finding.name == "images"} == {"warning"}
    of_test = examine_data(compose(words_for(folder, f"dataset.test_path={folder}")).config)
    observations = [finding.observation for finding in of_test if finding.name == "test images"]
    assert [line.split(" (")[0] for line in observations] == [
        "1 of 7 cannot be decoded",
        str(folder / "val/dog/text.gif"),
    ]


def test_doctor_lists_the_files_of_a_table_for_xargs(folder: Path, tmp_path: Path) -> None:
    (folder / "train/cat/cut.jpg").rename(folder / "train/cat/it's cut \u00e9.jpg")
    rows = [
        f"{file},{file.parent.name},{file.parts[-3]}" for file in sorted(folder.rglob("*.*")) if file.stem != "empty"
    ]
    words = words_for(tmp_path / "images" / ".." / "table.csv")
    both = next(row for row in rows if "it's" in row)  # note: an image of both splits
    rows = [*rows, both.replace(",train", ",val"), f"{folder}/gone.jpg,cat,train", f"{folder}/away.jpg,cat,val"]
    (tmp_path / "table.csv").write_text("\n".join(["path,label,split", *rows]))
    found = [finding for finding in examine_data(compose(words).config) if finding.name == "images"][1:]
    assert all(Path(finding.observation.split(" (")[0]).exists() for finding in found)
    code, listed, errors = execute("doctor", *words, "--list-bad")
    assert code == 0
    assert errors == f"note: 2 images of a table missing: {folder}/gone.jpg, {folder}/away.jpg\n"
    subprocess.run(["xargs", "rm"], input=listed, text=True, check=True)
    left = {file.name for file in folder.rglob("*.*")}
    assert left == {*(f"{number}.jpg" for number in range(6)), "empty.png"}
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as file:
        for name in ("train/a/0.jpg", "train/b/0.jpg", "val/a/0.jpg", "val/b/0.jpg"):
            file.writestr(name, b"no image")
    code, listed, errors = execute("doctor", *words_for(tmp_path / "x.zip"), "--list-bad")
    assert (code, listed) == (0, "")
    assert "note: 4 images in archives cannot be decoded: a/0.jpg in " in errors


def test_missing_files_of_a_table_are_counted_and_skipped(folder: Path, tmp_path: Path) -> None:
    parts = [(split, name) for split in ("train", "val") for name in ("cat", "dog")]
    names = [f"{split}/{name}/{n}.jpg,{name},{split}" for split, name in parts for n in range(3)]
    table = folder / "table.csv"
    table.write_text("\n".join(["path,label,split", *names, *(f"gone/{n}.jpg,cat,train" for n in range(12))]))
    missing = r"12 of the 24 images that it lists do not exist: .*gone/0\.jpg.* and 2 more; restore"
    with pytest.raises(UserError, match=missing):
        inspected(table)
    data = inspected(table, "dataset.skip_bad=true")
    assert data.config.dataset.train_samples == 6
    assert len(data.skipped) == 12


@pytest.mark.parametrize("kind", ["jpg", "jpeg", "jpe", "jfif", "JPG", "avif", "heic"])
def test_all_extensions_of_photos_are_read_or_name_their_package(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = b"\0\0\0\x18ftypheic" if kind == "heic" else b"\0\0\0\x18ftypavif"
    name, package = ("HEIF", "the package pillow-heif") if kind == "heic" else ("AVIF", "Pillow with AVIF")
    write_images(tmp_path, {"train": 2, "val": 1}, size=(17, 19))
    for file in [*tmp_path.rglob("*.jpg")]:
        file.rename(file.with_suffix(f".{kind}"))
    if kind in ("heic", "avif"):
        monkeypatch.setattr(decode, "_FORMATS", [one for one in decode._FORMATS if one != name])
        with pytest.raises(UserError, match=f"6 of the 6 images, such as cat/0.{kind}, need {package}; install it"):
            inspected(tmp_path)
        (tmp_path / "train" / "cat" / f"0.{kind}").write_bytes(container)
        assert reasons(tmp_path) == {f"train/cat/0.{kind}": f"a file of {name}, which needs {package}"}
        return
    assert inspected(tmp_path).config.dataset.train_samples == 4
    assert reasons(tmp_path) == {}


@pytest.mark.parametrize("kind", ["gif", "bmp", "tif", "tiff", "ppm", "pgm", "avif"])
def test_other_formats_are_read(tmp_path: Path, kind: str) -> None:
    if kind == "avif" and not features.check("avif"):
        pytest.skip("Pillow has no AVIF here")
    write_images(tmp_path, {"train": 1, "val": 1}, size=(7, 9), kind=kind)
    assert reasons(tmp_path) == {}
    assert len(write_files(tmp_path)) == 2
