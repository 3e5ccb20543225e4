"""The identity of a data set: equal in any folder and format, different for other images with equal counts too."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from launcher.config.compose import compose
from launcher.data.ffcv.beton import manifest_path
from launcher.data.ffcv.dataset import FFCVDataset
from launcher.data.ffcv.prepare import prepare
from launcher.data.identity import identity, identity_if_present
from launcher.data.inspection import inspect_data
from launcher.errors import UserError
from tests.images import write_images

from .conftest import words_for, write_files


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def flowers(tmp_path: Path) -> Path:
    """Two classes of four training and two validation images."""
    return write_images(tmp_path / "flowers", {"train": 4, "val": 2}, ("rose", "tulip"), size=(20, 30))


def of(path: Path | str, *words: str) -> str:
    return identity(compose(words_for(Path(path), *words)).config)


def test_a_copy_in_another_folder_is_the_same_data_set(flowers: Path, tmp_path: Path) -> None:
    shutil.copytree(flowers, tmp_path / "elsewhere")
    (tmp_path / "link").symlink_to(flowers)
    assert of(flowers) == of(tmp_path / "elsewhere") == of(tmp_path / "link")


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "train" / "rose").rename(folder / "train" / "pansy"),
        lambda folder: (folder / "train" / "rose" / "0.jpg").rename(folder / "train" / "rose" / "00.jpg"),
        lambda folder: (folder / "val" / "rose" / "0.jpg").write_bytes(b"another"),
        lambda folder: (folder / "val" / "rose" / "0.jpg").unlink(),
    ],
)
def test_a_changed_class_file_name_or_size_is_another_data_set(flowers: Path, change: Callable[[Path], object]) -> None:
    before = of(flowers)
    change(flowers)
    assert of(flowers) != before


def test_ffcv_files_of_the_folder_are_the_same_data_set(flowers: Path) -> None:
    write_files(flowers)
    assert of(flowers, "dataloader=ffcv") == of(flowers)


@pytest.mark.parametrize("words", [[], ["dataset.val_split=0.4"]])
def test_only_images_that_are_read_count(flowers: Path, tmp_path: Path, words: list[str]) -> None:
    if words:
        shutil.rmtree(flowers / "val")
    whole = of(flowers, *words)
    skipping = [*words, "dataset.skip_bad=true"]
    assert of(flowers, *skipping) == whole
    broken = ["train/rose/9.jpg", "train/tulip/00.jpg", *(["val/rose/8.jpg"] * (not words))]
    for name in broken:
        (flowers / name).write_text("no image")
    assert of(flowers, *words) != whole
    assert of(flowers, *skipping) == whole
    assert of(flowers, *words) != whole
    config = compose(words_for(flowers, *skipping)).config
    assert identity(config, skipped=broken) == whole
    assert identity(config, skipped=broken[:1]) != whole
    folder = f"dataloader.folder={tmp_path / 'ffcv'}"
    files = write_files(flowers, *words, folder, "dataset.skip_bad=true")
    assert of(flowers, *skipping, "dataloader=ffcv", folder) == whole
    manifests = [json.loads(manifest_path(file).read_text()) for file in files]
    assert {name for manifest in manifests for name in manifest["skipped"]} == {
        name.split("/", 1)[1] for name in broken
    }
    readable = inspect_data(config, must_exist=True).config.dataset
    assert [manifest["samples"] for manifest in manifests] == [readable.train_samples, readable.val_samples]


def test_a_file_without_a_manifest_is_identified_by_its_rows(flowers: Path, tmp_path: Path) -> None:
    def alone(folder: Path) -> str:
        for path in (folder / "ffcv").glob("*.beton"):
            manifest_path(path).unlink()
        return of(folder, "dataloader=ffcv")

    shutil.copytree(flowers, tmp_path / "cars")
    pixels = np.random.default_rng(9).integers(0, 256, (21, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "cars" / "train" / "rose" / "0.jpg")
    write_files(flowers)
    write_files(tmp_path / "cars")
    first = alone(flowers)
    shutil.copytree(flowers / "ffcv", tmp_path / "moved" / "ffcv")
    assert of(tmp_path / "moved", "dataloader=ffcv") == first != alone(tmp_path / "cars")


def test_the_identity_depends_on_val_split_but_not_on_the_seed(flowers: Path, tmp_path: Path) -> None:
    shutil.rmtree(flowers / "val")
    half = of(flowers, "dataset.val_split=0.5")
    assert half == of(flowers, "dataset.val_split=0.5", "seed=7")
    assert half != of(flowers, "dataset.val_split=0.25")
    folder = f"dataloader.folder={tmp_path / 'ffcv'}"
    write_files(flowers, "dataset.val_split=0.5", folder)
    assert of(flowers, "dataset.val_split=0.5", "dataloader=ffcv", folder) == half
    (flowers / "train" / "rose" / "0.jpg").unlink()
    assert of(flowers, "dataset.val_split=0.5") != half


def test_built_in_images_are_identified_by_their_values(tmp_path: Path) -> None:
    small = ["dataset=shapes", "dataset.train_samples=20", "dataset.val_samples=10", "dataset.native_size=32"]
    expected = identity(compose(small).config)
    assert not list(tmp_path.rglob("*.jpg"))
    assert identity(compose([*small, "seed=7", "recipe=mild"]).config) == expected
    assert identity(compose([*small, "dataset.native_size=48"]).config) != expected
    write = [*small, "dataloader=ffcv", "dataloader.workers=1", f"dataloader.folder={tmp_path / 'ffcv'}"]
    assert len(written(write)) == 2
    assert identity(inspect_data(compose(write).config, must_exist=True).config) == expected
    noise = ["dataset=imagenet", "dataloader=synthetic"]
    assert identity(compose(noise).config) == identity(compose([*noise, "seed=7"]).config)
    assert identity(compose(noise).config) != identity(compose([*noise, "dataset.classes=10"]).config)


def written(words: list[str]) -> list[object]:
    return list(prepare(FFCVDataset.of(compose(words).config), lambda *_: None))


def test_a_row_of_a_missing_image_is_to_be_restored(flowers: Path) -> None:
    (flowers / "a.csv").write_text(
        "image,label,split\n" + "".join(f"{one}.jpg,{one},{one}\n" for one in ("train", "val"))
    )
    with pytest.raises(UserError, match=r"train.jpg cannot be read: No such file or directory; restore it$"):
        of(flowers / "a.csv")


def test_a_missing_data_set_has_no_identity(tmp_path: Path) -> None:
    for words in (["dataset=image_folder"], words_for(tmp_path / "nowhere"), ["dataset=imagenet", "dataloader=ffcv"]):
        assert identity_if_present(compose(words).config) is None
