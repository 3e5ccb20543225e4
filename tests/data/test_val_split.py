"""The validation split of training images: by the seed and the names alone, a fraction of each class."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from launcher.config.compose import compose
from launcher.data.ffcv.dataset import FFCVDataset
from launcher.data.index import Images
from launcher.data.inspection import inspect_data
from launcher.data.sources.find import splits
from launcher.errors import UserError
from tests.commands import refused

from .conftest import make_loaders, words_for, write_files

COUNTS = {"cat": 40, "dog": 10, "emu": 3, "fox": 1}


def divide(folder: Path, seed: int, fraction: float = 0.1) -> tuple[Images, Images]:
    return splits(compose(words_for(folder, f"dataset.val_split={fraction}")).config.dataset, seed, "class")


def draw(path: Path, names: list[str]) -> None:
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        number = int(Path(name).stem)
        Image.new("RGB", (40, 32), (number, 255 - number, ord(Path(name).parent.name[0]))).save(path / name)


@pytest.fixture
def undivided(tmp_path: Path) -> Path:
    """Classes in the folder itself, written in no order."""
    names = [f"{name}/{number}.png" for name, count in COUNTS.items() for number in range(count)]
    draw(tmp_path / "images", list(np.random.default_rng(0).permutation(names)))
    return tmp_path / "images"


def per_class(files: list[str]) -> dict[str, int]:
    return dict(Counter(file.split("/")[0] for file in files))


def test_each_class_gives_its_fraction_and_keeps_its_last_image(undivided: Path) -> None:
    train, val = divide(undivided, 1)
    assert per_class(val.names) == {"cat": 4, "dog": 1, "emu": 1}
    assert per_class(train.names) == {"cat": 36, "dog": 9, "emu": 2, "fox": 1}
    assert sorted([*train.names, *val.names]) == sorted(f"{p.parent.name}/{p.name}" for p in undivided.glob("*/*"))
    for split in (train, val):
        assert split.classes == [*COUNTS]
        assert [split.classes[label] for label in split.labels] == [file.split("/")[0] for file in split.names]


def test_the_split_depends_only_on_seed_and_names(undivided: Path, tmp_path: Path) -> None:
    drawn = divide(undivided, 1)[1].names
    elsewhere = tmp_path / "elsewhere"
    draw(elsewhere / "train", sorted(f"{p.parent.name}/{p.name}" for p in undivided.glob("*/*")))
    assert divide(elsewhere, 1)[1].names == drawn
    assert divide(undivided, 2)[1].names != drawn
    draw(undivided, ["cat/40.png"])
    assert len({*divide(undivided, 1)[1].names} - {*drawn}) <= 1


def test_the_split_is_noted_and_larger_fractions_contain_smaller_ones(undivided: Path) -> None:
    config = compose(words_for(undivided, "dataset.val_split=0.1", "seed=1")).config
    inspection = inspect_data(config, must_exist=True)
    assert inspection.notes[:2] == [
        "dataset.val_split=0.1: holding out 6 of 54 images, drawn from each class by seed=1",
        "1 class has no validation images, so top-1 does not cover it: fox (1 training image)",
    ]
    assert (inspection.config.dataset.train_samples, inspection.config.dataset.val_samples) == (48, 6)
    assert {*divide(undivided, 1, 0.1)[1].names} < {*divide(undivided, 1, 0.3)[1].names}


def test_a_folder_of_ffcv_files_is_not_a_class(undivided: Path) -> None:
    (undivided / "ffcv").mkdir()
    (undivided / "ffcv" / "train.beton").touch()
    assert divide(undivided, 1)[0].classes == [*COUNTS]


@pytest.mark.parametrize("loader", ["torchvision", "ffcv"])
@pytest.mark.parametrize("world", [1, 2])
def test_loaders_read_both_splits_and_no_image_twice(undivided: Path, loader: str, world: int) -> None:
    """An image's first channel is its number."""
    words = ["dataset.val_split=0.25", f"dataloader={loader}", "dataloader.workers=1"]
    write_files(undivided, "dataset.val_split=0.25", "dataloader.files.jpeg_share=0.0")
    words += ["dataloader.files.jpeg_share=0.0"] * (loader == "ffcv")
    seen: list[tuple[str, str, int]] = []
    for rank in range(world):
        loaders = make_loaders(undivided, *words, rank=rank, world=world)
        for split, batches in (("train", loaders.train.epoch(0)), ("val", loaders.evaluate)):
            for images, labels, _ in batches:
                pixels = zip(labels.tolist(), images[:, 0, 0, 0].tolist(), strict=True)
                seen += [(split, [*COUNTS][label], number) for label, number in pixels]
        loaders.close()
    expected = divide(undivided, 42, 0.25)
    for split in expected:
        numbered = {(split.split, *(file.removesuffix(".png").split("/"))) for file in split.names}
        mine = [(a, b, str(number)) for a, b, number in seen if a == split.split]
        assert len(mine) == len({*mine})
        assert {*mine} <= numbered
        assert len(mine) == (len(numbered) if split.split == "val" else len(numbered) // 8 * 8)


def test_ffcv_files_of_another_split_are_refused(undivided: Path) -> None:
    write_files(undivided, "dataset.val_split=0.1")
    words = words_for(undivided, "dataloader=ffcv", "dataset.val_split=0.1")
    assert inspect_data(compose(words).config, must_exist=True).config.dataset.val_samples == 6
    for other in ("seed=7", "dataset.val_split=0.2"):
        files = FFCVDataset.of(compose([*words, other]).config)
        assert files.are_missing
        with pytest.raises(
            UserError, match=r"does not exist; a run writes it first.*: train prepare .*val_split=0.* seed="
        ):
            files.open("train")


def test_data_that_cannot_be_split_are_refused(undivided: Path) -> None:
    words = ["plan", "dataset=image_folder", f"dataset.path={undivided}"]
    assert "above 0" in refused(*words, "dataset.val_split=0")
    assert "their own validation split" in refused("plan", "dataset=shapes", "dataset.val_split=0.1")
    tar = ["prepare", "dataset=image_folder", "dataset.path=/nowhere/a.tar", "dataloader.folder=/tmp/nothing"]
    assert "no such file; set a tar" in refused(*tar, "dataset.val_split=0.1")
