import multiprocessing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from launcher.config.compose import compose
from launcher.config.schema import Dataset
from launcher.data.builtin import ensure_folder
from launcher.data.figures import FIGURES, draw_figure


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
