"""`dataloader.decode=gpu` with a stand-in for nvJPEG: the same crops, for any number of workers and from any step."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision.io import ImageReadMode, decode_jpeg

from launcher.data.device_jpeg import is_for_device
from launcher.data.jpeg import plain_frame
from launcher.errors import UserError
from launcher.launch import devices
from tests.commands import refused

from .conftest import make_loaders, same, stream, words_for

GPU = ("dataloader.decode=gpu", "dataset.native_size=16", "image.flip=0.5")
KINDS: list[dict[str, Any]] = [{}, {"progressive": True}, {"mode": "L"}, {}, {}]
decoded: list[int] = []


def stand_in(jpegs: list[Tensor], device: torch.device) -> list[Tensor]:
    decoded.append(len(jpegs))
    return [decode_jpeg(jpeg, mode=ImageReadMode.RGB) for jpeg in jpegs]


@pytest.fixture(autouse=True)
def nvjpeg(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded.clear()
    monkeypatch.setattr("launcher.data.device_jpeg.decode_jpegs", stand_in)


def saved(size: tuple[int, int], **options: Any) -> bytes:
    random = np.random.default_rng(size[0])
    coarse = Image.fromarray(random.integers(0, 256, (5, 7, 3), dtype=np.uint8))
    file = io.BytesIO()
    mode = str(options.pop("mode", "RGB"))
    coarse.resize(size, Image.Resampling.BICUBIC).convert(mode).save(file, "JPEG", **options)
    return file.getvalue()


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of 20 images, of which one in five is progressive, one gray and one a PNG."""
    root = tmp_path_factory.mktemp("jpegs")
    for split in ("train", "val"):
        for name in ("a", "b"):
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(20):
                content = saved((60 + number, 50 + 3 * number), **KINDS[number % 5])
                (folder / f"{number:02d}.jpg").write_bytes(content)
                if number % 5 == 4:
                    Image.open(io.BytesIO(content)).save(folder / f"{number:02d}.jpg", "PNG")
    return root


def test_crops_are_those_of_the_cpu_within_two_roundings(images: Path) -> None:
    there = stream(make_loaders(images, *GPU, "dataloader.workers=0"))
    # note: two of five JPEGs are baseline and in colour
    assert sum(decoded) == 2 * 16
    here = stream(make_loaders(images, *GPU[1:], "dataloader.workers=0"))
    for ours, theirs in zip(there, here, strict=True):
        assert torch.equal(ours[1], theirs[1])
        assert np.array_equal(ours[2], theirs[2])
        assert ours[0].stride() == theirs[0].stride()
        difference = (ours[0].int() - theirs[0].int()).abs()
        assert difference.max() <= 1
        assert 0 < difference.float().mean() < 0.3


def test_workers_and_resumes_do_not_change_the_stream(images: Path) -> None:
    alone = stream(make_loaders(images, *GPU, "dataloader.workers=0"))
    assert same(alone, stream(make_loaders(images, *GPU, "dataloader.workers=2")))
    assert same(alone[2:5], stream(make_loaders(images, *GPU, "dataloader.workers=2"), epochs=(0,), first=2))
    ranks = [stream(make_loaders(images, *GPU, "dataloader.workers=0", rank=rank, world=2)) for rank in range(2)]
    for whole, *parts in zip(alone, *ranks, strict=True):
        assert torch.equal(whole[0], torch.cat([part[0] for part in parts]))


def test_evaluation_stays_on_the_cpu(images: Path) -> None:
    ours, theirs = ([*make_loaders(images, *w, "dataloader.workers=0").evaluate] for w in (GPU, GPU[1:]))
    assert same(ours, theirs)
    assert not decoded


def test_a_jpeg_that_the_device_refuses_is_decoded_by_the_cpu_or_named(
    images: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(jpegs: list[Tensor], device: torch.device) -> list[Tensor]:
        raise RuntimeError("nvjpegDecode failed: 5")

    here = stream(make_loaders(images, *GPU[1:], "dataloader.workers=0"))
    monkeypatch.setattr("launcher.data.device_jpeg.decode_jpegs", fail)
    assert same(here, stream(make_loaders(images, *GPU, "dataloader.workers=0")))
    (images / "train" / "a" / "00.jpg").rename(tmp_path / "whole.jpg")
    whole = (tmp_path / "whole.jpg").read_bytes()
    try:
        (images / "train" / "a" / "00.jpg").write_bytes(whole[:200] + b"\xff\xd9")
        with pytest.raises(UserError, match=r"00\.jpg cannot be read as an image") as raised:
            stream(make_loaders(images, *GPU, "dataloader.workers=2"), epochs=(0, 1, 2))
    finally:
        (images / "train" / "a" / "00.jpg").write_bytes(whole)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, True), ({"subsampling": 0}, True), ({"progressive": True}, False), ({"mode": "L"}, False),
     ({"keep_rgb": True}, False)],
)  # fmt: skip
def test_what_the_device_decodes(options: dict[str, Any], expected: bool) -> None:
    data = saved((40, 50), **options)
    frame = plain_frame(data, upright=True)
    assert frame is not None
    assert is_for_device(data, frame) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "dataloader.decode=gpu: needs a GPU, and this run is on the CPU; set dataloader.decode=cpu"),
        (["dataloader.dct_scaling=true"], "set dataloader.dct_scaling=false, or dataloader.decode=cpu"),
        (["dataloader=ffcv"], "dataloader.decode=gpu (command line): must be one of whole, crop"),
        (["cuda_graphs=on"], "set cuda_graphs=off, or dataloader.decode=cpu"),
        (["algorithms=[randaugment]", "algorithms.randaugment.where=loader"], "set algorithms.randaugment=off, or"),
    ],
)
def test_what_cannot_work_is_a_one_line_error(
    images: Path, words: list[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if words:
        monkeypatch.setattr(devices, "visible_gpus", lambda: 1)
    device = "auto" if words else "cpu"
    errors = refused("plan", *words_for(images, f"launch.device={device}", *GPU[:2], *words))
    assert expected in errors
    assert errors.count("\n") == 1
