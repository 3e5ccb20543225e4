"""Unreadable images: listed at once, or skipped and counted, the same in every part of a run."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from launcher.config.compose import compose
from launcher.data import unreadable as module
from launcher.data.inspection import inspect_data
from launcher.data.sources.find import splits
from launcher.data.unreadable import read_skipped, unreadable, write_skipped
from launcher.data.workers import quiet
from launcher.disk import DiskError
from launcher.doctor.examine import examine_data
from launcher.errors import UserError
from tests.images import write_images

from .conftest import words_for, write_files

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
    return unreadable(splits(dataset, 0), quiet)


@pytest.mark.parametrize("at_once", [2, 64])
def test_all_unreadable_images_are_listed_with_reasons(
    folder: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(module, "_IMAGES_A_TASK", at_once)
    by_file = reasons(folder)
    assert [*by_file] == [*BAD]
    assert all(reason in by_file[file] for file, reason in BAD.items())


def test_skipped_images_are_counted_and_noted(folder: Path) -> None:
    inspection = inspect_data(compose(words_for(folder, "dataset.skip_bad=true")).config, must_exist=True)
    assert (inspection.config.dataset.train_samples, inspection.config.dataset.val_samples) == (12, 6)
    assert [*inspection.skipped] == [*BAD]
    assert inspection.notes[0].startswith(
        "dataset.skip_bad=true: skipping 3 images that cannot be decoded: train/cat/cut.jpg ("
    )
    plain = inspect_data(compose(words_for(folder)).config, must_exist=True)
    assert (plain.config.dataset.train_samples, plain.config.dataset.val_samples) == (14, 7)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EMFILE])
def test_a_failing_disk_makes_no_image_unreadable(folder: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    fails, real = [True], open

    def failing(*arguments: Any, **named: Any) -> Any:
        if fails and str(arguments[0]).endswith("train/cat/1.jpg"):
            fails.pop()
            raise OSError(number, os.strerror(number), arguments[0])
        return real(*arguments, **named)

    monkeypatch.setattr("launcher.disk.PAUSES", (0.0, 0.0))
    monkeypatch.setattr("builtins.open", failing)
    assert [*reasons(folder)] == [*BAD], "a repetition succeeds"
    fails += [True] * 3
    with pytest.raises(DiskError, match=rf"train/cat/1\.jpg: {os.strerror(number)}; "):
        reasons(folder)


def test_a_class_without_readable_images_is_refused(folder: Path) -> None:
    for number in range(6):
        (folder / "train" / "dog" / f"{number}.jpg").write_bytes(b"broken")
    with pytest.raises(UserError, match=r"no training images: dog \(3 validation images\)"):
        inspect_data(compose(words_for(folder, "dataset.skip_bad=true")).config, must_exist=True)


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


@pytest.mark.parametrize("kind", ["gif", "bmp", "tif", "tiff", "ppm", "pgm"])
def test_other_formats_are_read(tmp_path: Path, kind: str) -> None:
    write_images(tmp_path, {"train": 1, "val": 1}, size=(7, 9), kind=kind)
    assert reasons(tmp_path) == {}
    assert len(write_files(tmp_path)) == 2
