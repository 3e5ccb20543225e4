import multiprocessing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from launcher.config.compose import compose
from launcher.config.schema import Dataset
from launcher.data.builtin import ensure_folder
from launcher.data.builtin._figures import FIGURES, draw_figure
from launcher.errors import UserError


def dataset(path: Path) -> Dataset:
    words = ["dataset=shapes", "dataset.train_samples=40", "dataset.val_samples=20", f"dataset.path='{path}'"]
    return compose(words).config.dataset


def counts(path: Path) -> tuple[int, int, int]:
    return len([*path.glob("train/*")]), len([*path.glob("train/*/*.jpg")]), len([*path.glob("val/*/*.jpg")])


def test_the_folder_is_a_data_set_of_ten_classes(tmp_path: Path) -> None:
    path = ensure_folder(dataset(tmp_path / "shapes"))
    assert counts(path) == (10, 40, 20)
    with Image.open(path / "train" / "star" / "000008.jpg") as image:
        assert image.size == (64, 64)
    assert list(tmp_path.iterdir()) == [path]


def test_images_are_a_function_of_their_names() -> None:
    first = np.asarray(draw_figure("star", 64, "train", 8))
    assert np.array_equal(first, np.asarray(draw_figure("star", 64, "train", 8)))
    assert not np.array_equal(first, np.asarray(draw_figure("star", 64, "val", 8)))


def test_an_existing_folder_is_used_as_it_is(tmp_path: Path) -> None:
    path = ensure_folder(dataset(tmp_path / "shapes"))
    marked = path / "train" / "star" / "000008.jpg"
    marked.write_bytes(b"mine")
    ensure_folder(dataset(tmp_path / "shapes"))
    assert marked.read_bytes() == b"mine"


@pytest.mark.parametrize("kind", ["shapes", "shape_masks"])
def test_a_folder_of_other_images_is_neither_read_nor_written(kind: str, tmp_path: Path) -> None:
    words = [f"dataset={kind}", "dataset.train_samples=11", "dataset.val_samples=11", f"dataset.path={tmp_path / 'a'}"]
    drawn = ensure_folder(compose(words).config.dataset)
    before = sorted(drawn.rglob("*"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    for other in ([*words[:-1], f"dataset.path={tmp_path / 'mine'}"], [*words, "dataset.val_samples=12"]):
        with pytest.raises(UserError, match=rf"is not the folder of dataset={kind}.*set dataset=image_folder to read"):
            ensure_folder(compose(other).config.dataset)
    assert sorted(drawn.rglob("*")) == before
    assert [one.name for one in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_two_processes_may_draw_at_once(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        paths = pool.map(ensure_folder, [dataset(tmp_path / "shapes")] * 2)
    assert counts(paths[0]) == (10, 40, 20)
    assert list(tmp_path.iterdir()) == [paths[0]]


@pytest.mark.parametrize("channel", range(3))
def test_colour_does_not_identify_the_class(channel: int) -> None:
    from scipy import stats

    means = [
        [np.asarray(draw_figure(name, 64, "train", index))[:4, :4, channel].mean() for index in range(60)]
        for name in FIGURES
    ]
    assert stats.f_oneway(*means).pvalue > 1e-4
