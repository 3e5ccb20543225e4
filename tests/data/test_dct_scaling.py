"""Decoding JPEGs at a smaller scale: the scale, the pixels, and an unchanged stream."""

import io
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from launcher.data.batch import START
from launcher.data.ffcv.beton import open_beton
from launcher.data.ffcv.reader import DecodingPool
from launcher.data.jpeg import fewest_eighths, scaled_box
from launcher.data.sampling import Request

from .conftest import ONE_THREAD, make_loaders, photographs, same, stream, write_files

SIZE = 64
JPEGS = ("dataloader.files.jpeg_share=1.0",)
SCALED = ("dataloader.dct_scaling=true", "dataset.native_size=16")


@pytest.fixture(scope="module")
def jpegs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photograph-like images, squares first, stored as JPEGs."""
    root = photographs(tmp_path_factory.mktemp("jpegs"), squares=(SIZE, SIZE))
    write_files(root, *JPEGS)
    return root


def words(*more: str) -> list[str]:
    return ["dataloader=ffcv", "dataloader.workers=1", "batch_size=4", *JPEGS, *more]


@pytest.mark.parametrize("part", [2, 4, 8])
def test_scaled_pixels_are_those_of_opencv_and_pillow(jpegs: Path, part: int) -> None:
    (path,) = jpegs.glob("ffcv/train*.beton")
    data, rows = path.read_bytes(), open_beton(path).rows["f0"][:4]
    size = SIZE // part
    boxes = np.tile([0, 0, SIZE, SIZE, 0], (4, 1))
    pool = DecodingPool(open_beton(path), lambda _: boxes, shard=ONE_THREAD, preload=False, scaled=True)
    ((images, _, _),) = pool.batches([Request(START, np.arange(4), size)])
    pool.close()
    reduced = {2: cv2.IMREAD_REDUCED_COLOR_2, 4: cv2.IMREAD_REDUCED_COLOR_4, 8: cv2.IMREAD_REDUCED_COLOR_8}[part]
    for got, place in zip(images.permute(0, 2, 3, 1).numpy().astype(int), rows["place"], strict=True):
        jpeg = data[place : data.index(b"\xff\xd9", place) + 2]
        decoded = cv2.imdecode(np.frombuffer(jpeg, np.uint8), reduced)
        by_opencv = decoded[..., ::-1]
        drafted = Image.open(io.BytesIO(jpeg))
        drafted.draft("RGB", (size, size))
        for expected in (by_opencv, np.asarray(drafted)):
            # note: FFCV uses the fast transform if all coefficients count, as for halved chroma at 1/2
            assert np.abs(got - expected).max() <= (6 if part == 2 else 1)


@given(st.integers(1, 600), st.integers(1, 600), st.integers(1, 300))
def test_the_scale_is_the_smallest_that_enlarges_nothing(height: int, width: int, size: int) -> None:
    eighths = fewest_eighths(height, width, size)
    assert eighths in (1, 2, 4, 8)
    assert eighths == 8 or min(height, width) * eighths / 8 >= size
    assert eighths == 1 or min(height, width) * (eighths // 2) / 8 < size


@given(st.integers(1, 600), st.integers(1, 600), st.sampled_from([1, 2, 4, 8]), st.data())
def test_a_scaled_box_is_the_same_part_of_the_image(height: int, width: int, eighths: int, data: st.DataObject) -> None:
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    rows, columns = data.draw(st.integers(1, height - top)), data.draw(st.integers(1, width - left))
    new_top, new_left, new_rows, new_columns = scaled_box(top, left, rows, columns, eighths)
    exact = np.array([top, left, top + rows, left + columns]) * eighths / 8
    actual = np.array([new_top, new_left, new_top + new_rows, new_left + new_columns])
    assert np.abs(actual - exact).max() <= 0.5
    assert new_rows >= rows * eighths // 8
    assert new_columns >= columns * eighths // 8
    assert actual[2] <= -(-height * eighths // 8)
    assert actual[3] <= -(-width * eighths // 8)


def test_the_stream_is_the_same_except_for_the_decoders_rounding(jpegs: Path) -> None:
    whole, scaled = (stream(make_loaders(jpegs, *words(*SCALED[1:], *more))) for more in ((), SCALED[:1]))
    differ = [(a[0].float() - b[0].float()).abs().mean().item() for a, b in zip(whole, scaled, strict=True)]
    assert 0 < np.mean(differ) < 6
    assert all(np.array_equal(a[2], b[2]) for a, b in zip(whole, scaled, strict=True))


def test_workers_do_not_change_scaled_pixels(jpegs: Path) -> None:
    scaled = stream(make_loaders(jpegs, *words(*SCALED)))
    assert same(scaled, stream(make_loaders(jpegs, *words(*SCALED, "dataloader.workers=3"))))


def test_evaluation_is_not_scaled(jpegs: Path) -> None:
    both = [make_loaders(jpegs, *words(*SCALED[1:], *more)) for more in ((), SCALED[:1])]
    assert same(list(both[0].evaluate), list(both[1].evaluate))
    for loaders in both:
        loaders.close()
