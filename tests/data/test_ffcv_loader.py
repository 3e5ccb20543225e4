"""FFCV's kernels on keyed crops, and FFCV's pitfalls."""

import dataclasses
import os
import threading
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from launcher.config.compose import compose
from launcher.data.batch import Moment
from launcher.data.crops import Crops, centre_boxes, random_crops
from launcher.data.ffcv.beton import open_beton
from launcher.data.ffcv.dataset import file_name
from launcher.data.ffcv.reader import DecodingPool, choose
from launcher.data.images import ChangeImage
from launcher.data.sampling import Request
from launcher.errors import UserError
from tests.forked import python

from .conftest import ONE_THREAD, make_loaders, needs_ffcv, photographs, same, stream, write_files

IMAGE = compose([]).config.image
FILES = compose(["dataloader=ffcv"]).config.dataloader.files  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def smooth(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photograph-like PNGs, whose stored pixels are known."""
    root = photographs(tmp_path_factory.mktemp("smooth"))
    for share in (0.0, 1.0):
        write_files(root, f"dataloader.files.jpeg_share={share}")
    return root


def words(share: float, *more: str) -> list[str]:
    files = f"dataloader.files.jpeg_share={share}"
    return ["dataloader=ffcv", "dataloader.workers=1", files, "batch_size=4", *more]


def original(root: Path, split: str, index: int) -> np.ndarray:
    return np.asarray(Image.open(root / split / "ab"[index // 6] / f"{index:02d}.png"))


def test_stored_pixels_become_opencvs_area_average_of_the_keyed_crop(smooth: Path) -> None:
    for images, _, indices in stream(make_loaders(smooth, *words(0.0, "image.flip=0.5")), epochs=(2,)):
        for got, index in zip(images, indices.tolist(), strict=True):
            source = original(smooth, "train", index)
            crops = Crops(IMAGE, seed=42, epoch=2, indices=np.array([index]))
            top, left, height, width, flip = crops.box(0, *source.shape[:2])
            part = source[top : top + height, left : left + width]
            expected = cv2.resize(part, (32, 32), interpolation=cv2.INTER_AREA)
            expected = expected[:, ::-1] if flip else expected
            # note: FFCV is built with Debian's OpenCV, whose rounding may differ from the newer one's by one
            assert np.abs(got.permute(1, 2, 0).numpy().astype(int) - expected).max() <= 1


FFCVS_OWN = """
import sys
import numpy as np
from ffcv.fields.rgb_image import CenterCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
pipelines = {"image": [CenterCropRGBImageDecoder((32, 32), 32 / 40)], "label": None}
loader = Loader(sys.argv[1], batch_size=12, num_workers=1, order=OrderOption.SEQUENTIAL, pipelines=pipelines)
(images,) = next(iter(loader))
np.save(sys.argv[2], np.asarray(images))
"""


@needs_ffcv
@pytest.mark.parametrize("share", [0.0, 1.0])
def test_evaluation_is_ffcvs_centre_crop(smooth: Path, tmp_path: Path, share: float) -> None:
    loaders = make_loaders(smooth, *words(share, "image.reference=32", "image.train_size=32", "image.eval_size=32",
                                        "image.eval_resize=40"))  # fmt: skip
    ours = torch.cat([images for images, _, _ in loaders.evaluate])
    loaders.close()
    file = smooth / "ffcv" / file_name("val", dataclasses.replace(FILES, jpeg_share=share))
    # note: FFCV's loader changes numba's types for the whole process
    python(FFCVS_OWN, str(file), str(tmp_path / "theirs.npy"), folder=tmp_path)
    assert np.array_equal(ours.permute(0, 2, 3, 1).numpy(), np.load(tmp_path / "theirs.npy"))


def test_preloading_changes_nothing(image_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    streams = []
    for word in ("true", "false"):
        streams.append(stream(make_loaders(image_folder, "dataloader=ffcv", f"dataloader.os_cache={word}")))
        assert f"dataloader.os_cache={word}: " in capsys.readouterr().out
    assert same(*streams)


@pytest.mark.parametrize(
    ("os_cache", "size", "free", "expected"),
    [("auto", 70, 100, True), ("auto", 90, 100, False), (True, 90, 100, True), (False, 1, 100, False)],
)
def test_files_are_preloaded_if_they_fit(os_cache: bool | str, size: int, free: int, expected: bool) -> None:
    preload, line = choose(os_cache, [size * 10**9 - 1, 1], free * 10**9)
    assert preload is expected
    assert f"files {size}.00 GB, free memory {free}.00 GB" in line


def decoders() -> int:
    return sum(thread.name.startswith("decode") for thread in threading.enumerate())


def test_closing_after_partial_epochs_ends_all_threads(image_folder: Path) -> None:
    before = decoders()
    loaders = make_loaders(image_folder, "dataloader=ffcv", "dataloader.workers=3")
    for epoch in range(5):
        next(iter(loaders.train.epoch(epoch)))
        assert decoders() - before <= 3
    whole = list(loaders.train.epoch(7))
    loaders.close()
    assert decoders() == before
    assert same(whole, stream(make_loaders(image_folder, "dataloader=ffcv"), epochs=(7,)))


def test_two_loaders_at_once_are_independent(image_folder: Path) -> None:
    alone = stream(make_loaders(image_folder, "dataloader=ffcv"), epochs=(0,))
    first, second = (make_loaders(image_folder, "dataloader=ffcv", "dataloader.workers=3") for _ in range(2))
    pairs = list(zip(first.train.epoch(0), first.evaluate, second.train.epoch(0), strict=False))
    assert same([pair[0] for pair in pairs], alone[: len(pairs)])
    assert same([pair[2] for pair in pairs], alone[: len(pairs)])
    first.close()
    second.close()


@needs_ffcv
def test_importing_ffcv_keeps_torchs_threads(tmp_path: Path) -> None:
    code = "import torch; torch.set_num_threads(3); from launcher.data.jpeg import decoder_of; decoder_of('ffcv'); "
    code += "print(torch.get_num_threads())"
    assert python(code, folder=tmp_path) == "3\n"


@pytest.fixture
def spoiled(image_folder: Path, tmp_path: Path) -> Path:
    """A copy of the training file, to be changed."""
    path = tmp_path / "train.beton"
    path.write_bytes((image_folder / "ffcv" / file_name("train", FILES)).read_bytes())
    return path


def test_the_error_of_a_damaged_image_shows_its_number(image_folder: Path, spoiled: Path) -> None:
    rows = open_beton(spoiled).rows["f0"]
    number = int(np.flatnonzero(rows["mode"] == 0)[0])
    data = bytearray(spoiled.read_bytes())
    data[rows["place"][number] : rows["place"][number] + 8] = bytes(8)
    spoiled.write_bytes(data)
    with pytest.raises(UserError, match=rf"train\.beton: image {number} is damaged"):
        stream(
            make_loaders(image_folder, "dataloader=ffcv", f"dataloader.train={spoiled}", "batch_size=42"), epochs=(0,)
        )


@pytest.mark.parametrize("os_cache", ["true", "false"])
def test_a_file_truncated_while_it_is_read_is_an_error(image_folder: Path, spoiled: Path, os_cache: str) -> None:
    loaders = make_loaders(
        image_folder, "dataloader=ffcv", f"dataloader.train={spoiled}", f"dataloader.os_cache={os_cache}"
    )
    batches = iter(loaders.train.epoch(0))
    next(batches)
    with spoiled.open("r+b") as file:
        file.truncate(2**20)
    with pytest.raises(UserError, match=r"train\.beton changed during the run"):
        stream(loaders, epochs=(1,))
    loaders.close()


def centres(path: Path, change_image: ChangeImage) -> DecodingPool:
    """Return a reader of centred squares."""
    file = open_beton(path)
    return DecodingPool(
        file, lambda request: centre_boxes(*file.sizes(request.indices), request.view, request.view),
        shard=ONE_THREAD, preload=False, change_image=change_image,
    )  # fmt: skip


def test_a_file_truncated_after_its_images_were_requested_is_an_error(spoiled: Path) -> None:
    def truncate(pixels: np.ndarray, index: int, moment: Moment) -> np.ndarray:
        os.truncate(spoiled, 2**15)
        return pixels

    pool = centres(spoiled, truncate)
    with pytest.raises(UserError, match=r"train\.beton changed during the run; run train prepare again"):
        list(pool.batches([Request(Moment(0, number, number, 3), np.arange(20), 8) for number in range(3)]))
    pool.close()


def test_algorithms_may_change_each_image(image_folder: Path) -> None:
    path = image_folder / "ffcv" / file_name("train", FILES)
    pool = centres(path, lambda pixels, index, moment: np.full_like(pixels, index + moment.step))
    ((images, _, _),) = pool.batches([Request(Moment(0, 0, 100, 101), np.arange(20), 8)])
    pool.close()
    assert images[:, 0, 0, 0].tolist() == list(range(100, 120))


@given(st.lists(st.tuples(st.integers(1, 600), st.integers(1, 600), st.integers(0, 10**6)), min_size=1, max_size=20))
def test_crops_of_a_batch_are_those_of_its_samples(samples: list[tuple[int, int, int]]) -> None:
    heights, widths, indices = np.array(samples).T
    boxes = random_crops(IMAGE, heights, widths, seed=3, epoch=1, indices=indices)
    for box, (height, width, index) in zip(boxes.tolist(), samples, strict=True):
        assert tuple(box) == Crops(IMAGE, seed=3, epoch=1, indices=np.array([index])).box(0, height, width)


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 400), st.integers(0, 100))
def test_centre_boxes_are_centred_squares_inside(height: int, width: int, size: int, more: int) -> None:
    ((top, left, rows, columns, flip),) = centre_boxes(
        np.array([height]), np.array([width]), size + more, size
    ).tolist()
    assert rows == columns <= min(height, width)
    assert abs(rows - min(height, width) * size / (size + more)) <= 1
    assert abs((height - rows) - 2 * top) <= 1
    assert abs((width - columns) - 2 * left) <= 1
    assert flip == 0
