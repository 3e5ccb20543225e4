"""The second, smaller copy of the training images: writing it, checking it, and the steps that read it."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.config.compose import compose
from launcher.data.crops import same_parts
from launcher.data.ffcv.beton import open_beton, read_manifest
from launcher.data.ffcv.dataset import file_name, small_values
from launcher.errors import UserError
from launcher.plan.checks import check
from launcher.plan.plan import Plan
from tests.commands import output_of, refused

from .conftest import make_loaders, same, stream, words_for, write_files

FILES = ("dataloader=ffcv", "dataloader.workers=1", "dataloader.files.max_side=48", "dataloader.files.jpeg_share=0.0",
         "dataloader.files.small_side=24")  # fmt: skip
GROWING = ("algorithms.progressive_resizing=on", "algorithms.progressive_resizing.where=loader", "image.reference=32",
           "image.train_size=32", "epochs=6")  # fmt: skip
VALUES = compose([*FILES]).config.dataloader.files  # type: ignore[union-attr]
# The steps, of 30, at 16 px, for which small images have as many pixels as full ones for 32: the delay of
# 12, and two of the ramp that round down to 16.
SMALL_STEPS = 14


@pytest.fixture(scope="module")
def files(image_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the three files."""
    folder = tmp_path_factory.mktemp("files")
    write_files(image_folder, *FILES, f"dataloader.folder={folder}")
    return folder


def words(files: Path, *more: str) -> list[str]:
    return [*FILES, *GROWING, f"dataloader.folder={files}", *more]


def small_file(folder: Path) -> Path:
    (path,) = folder.glob("train-24px*.beton")
    return path


def test_the_small_file_equals_a_full_one_of_the_same_values(image_folder: Path, files: Path, tmp_path: Path) -> None:
    alone = [*FILES[:2], "dataloader.files.max_side=24", "dataloader.files.jpeg_share=0.0"]
    train, _ = write_files(image_folder, *alone, f"dataloader.folder={tmp_path}")
    assert train.read_bytes() == small_file(files).read_bytes()
    assert read_manifest(train) == read_manifest(small_file(files))
    rows = open_beton(train).rows["f0"]
    assert np.maximum(rows["height"], rows["width"]).max() <= 24


def test_check_finds_one_changed_bit(image_folder: Path, files: Path, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    shutil.copytree(files, folder)
    command = ["prepare", *words_for(image_folder, *FILES), f"dataloader.folder={folder}", "--check"]
    assert output_of(*command).count("checksums match") == 3
    blacken(small_file(folder), byte=1)
    assert "24px" in (errors := refused(*command))
    assert "is damaged (wrong checksum)" in errors


def blacken(path: Path, byte: int = 0) -> None:
    """Change one stored image's first byte, or make all images black."""
    rows, data = open_beton(path).rows["f0"], bytearray(path.read_bytes())
    if byte:
        data[int(rows["place"][0])] ^= byte
    else:
        for height, width, place in zip(
            rows["height"].tolist(), rows["width"].tolist(), rows["place"].tolist(), strict=True
        ):
            data[place : place + 3 * height * width] = bytes(3 * height * width)
    path.write_bytes(data)


@pytest.fixture(scope="module")
def black(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files, with black images in the small one."""
    folder = tmp_path_factory.mktemp("black") / "files"
    shutil.copytree(files, folder)
    blacken(small_file(folder))
    return folder


def test_exactly_the_steps_with_small_crops_read_the_small_file(image_folder: Path, black: Path) -> None:
    batches = stream(make_loaders(image_folder, *words(black)), tuple(range(6)))
    assert [not images.any() for images, _, _ in batches] == [True] * SMALL_STEPS + [False] * (30 - SMALL_STEPS)


def test_a_resumed_run_reads_the_same_files(image_folder: Path, black: Path) -> None:
    whole = stream(make_loaders(image_folder, *words(black)), (2,))
    assert [not images.any() for images, _, _ in whole] == [True, True, True, True, False]
    for first in (2, 4):
        assert same(whole[first:], stream(make_loaders(image_folder, *words(black)), (2,), first))


def test_samples_labels_and_crops_are_those_of_the_full_images(image_folder: Path, files: Path) -> None:
    small = stream(make_loaders(image_folder, *words(files)), (0,))
    full = stream(make_loaders(image_folder, *words(files, "dataloader.files.small_side=null")), (0,))
    for (a, labels, indices), (b, other_labels, other_indices) in zip(small, full, strict=True):
        assert labels.tolist() == other_labels.tolist()
        assert indices.tolist() == other_indices.tolist()
        same_crops = np.corrcoef(a.numpy().ravel(), b.numpy().ravel())[0, 1]
        assert same_crops > 0.5 > abs(np.corrcoef(a.numpy().ravel(), b.flip(0).numpy().ravel())[0, 1])


def test_evaluation_reads_full_images(image_folder: Path, black: Path) -> None:
    both = [make_loaders(image_folder, *words(black, *more)) for more in ((), ("dataloader.files.small_side=null",))]
    first, second = (list(loaders.evaluate) for loaders in both)
    assert same(first, second)
    for loaders in both:
        loaders.close()


SIZES = st.integers(1, 600)


@given(SIZES, SIZES, st.floats(0.05, 1.0), st.data())
def test_the_same_part_is_within_half_a_pixel(height: int, width: int, scale: float, data: st.DataObject) -> None:
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    rows, columns = data.draw(st.integers(1, height - top)), data.draw(st.integers(1, width - left))
    new_height, new_width = max(1, int(height * scale)), max(1, int(width * scale))
    ((new_top, new_left, new_rows, new_columns, flip),) = same_parts(
        np.array([[top, left, rows, columns, 1]]), np.array([height]), np.array([width]), np.array([new_height]),
        np.array([new_width]),
    ).tolist()  # fmt: skip
    for start, length, old, new_start, new_length, new in (
        (top, rows, height, new_top, new_rows, new_height), (left, columns, width, new_left, new_columns, new_width),
    ):  # fmt: skip
        assert 0 <= new_start < new_start + new_length <= new
        assert abs(new_start - start * new / old) <= 1
        assert new_length == 1 or abs(new_start - start * new / old) <= 0.5
        assert new_length == 1 or abs(new_start + new_length - (start + length) * new / old) <= 0.5
    assert flip == 1


def test_small_images_that_are_not_smaller_are_refused(image_folder: Path) -> None:
    values = compose(["dataloader=ffcv", "dataloader.files.small_side=500"]).config.dataloader.files  # type: ignore[union-attr]
    with pytest.raises(UserError, match=r"small_side=500: must be below dataloader.files.max_side \(500\)"):
        small_values(values)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("algorithms.progressive_resizing.where=device", "32 px; set dataloader.files.small_side=null"),
        ("algorithms.progressive_resizing=off", "32 px; set dataloader.files.small_side=null"),
        ("dataloader.files.small_side=20", "16 px; set dataloader.files.small_side=24"),
    ],
)
def test_small_images_that_no_step_reads_are_refused(word: str, expected: str) -> None:
    config = compose(words_for(Path("/none"), *FILES, *GROWING, word)).config
    with pytest.raises(UserError, match=f"all crops have at least {expected}"):
        check(Plan(config, 1, 42), {})


def test_the_error_of_a_missing_file_shows_the_command_that_writes_it(
    image_folder: Path, files: Path, tmp_path: Path
) -> None:
    shutil.copytree(files, tmp_path / "files")
    small_file(tmp_path / "files").unlink()
    command = "dataloader.files.max_side=48 dataloader.files.jpeg_share=0.0 dataloader.files.small_side=24"
    with pytest.raises(
        UserError, match=f"train-24px.* does not exist; a run writes it first, or type: train prepare .*{command}"
    ):
        make_loaders(image_folder, *words(tmp_path / "files"))


def test_a_file_of_other_images_is_refused(image_folder: Path, files: Path, tmp_path: Path) -> None:
    shutil.copytree(files, tmp_path / "files")
    path = small_file(tmp_path / "files")
    for suffix in ("", ".json"):
        shutil.copy(files / (file_name("val", VALUES) + suffix), f"{path}{suffix}")
    with pytest.raises(UserError, match="hold different images"):
        make_loaders(image_folder, *words(tmp_path / "files"))
