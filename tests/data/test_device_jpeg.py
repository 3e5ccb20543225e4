"""`dataloader.decode=gpu` with a stand-in for nvJPEG: the same crops, for any number of workers and from any step."""

import io
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image
from torch import Tensor
from torchvision.io import ImageReadMode, decode_jpeg

from launcher.config.compose import compose
from launcher.data import device_jpeg
from launcher.data.crops import Box
from launcher.data.device_jpeg import is_for_device
from launcher.data.jpeg import plain_frame, with_decoder
from launcher.errors import MachineError, UserError
from launcher.launch import devices
from tests.commands import refused
from tests.launches import Launches

from .conftest import make_loaders, same, stream, words_for

pytestmark = pytest.mark.slow

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
    monkeypatch.setattr("launcher.data.jpeg.find_spec", lambda name: name == "torchcodec" or find_spec(name))


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


def test_groups_of_any_size_have_the_same_crops(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = stream(make_loaders(images, *GPU, "dataloader.workers=0"))
    batches = len(decoded)
    monkeypatch.setattr(device_jpeg, "_MOST_BYTES", 30_000)
    parts = stream(make_loaders(images, *GPU, "dataloader.workers=0"))
    assert sum(decoded[:batches]) == sum(decoded[batches:])
    assert len(decoded) - batches > batches
    # note: sums over the wider padding of a larger group round differently
    assert max(int((one[0].int() - other[0].int()).abs().max()) for one, other in zip(whole, parts, strict=True)) <= 1
    assert [*device_jpeg.groups([5, 4, 1, 20, 3], 9)] == [slice(0, 2), slice(2, 3), slice(3, 4), slice(4, 5)]


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_a_batch_of_crops_is_that_of_torch_in_a_few_launches(interpolation: str) -> None:
    random, count = np.random.default_rng(0), 60
    wholes = [
        torch.from_numpy(random.integers(0, 256, (3, h, w), dtype=np.uint8))
        for h, w in random.integers(8, 90, (count, 2))
    ]
    boxes: list[Box] = []
    for number, whole in enumerate(wholes):
        top, left = (int(random.integers(0, length - 4)) for length in whole.shape[1:])
        boxes.append((top, left, whole.shape[1] - top - number % 4, whole.shape[2] - left, number % 2))
    with Launches() as launches:
        crops = device_jpeg.cut_on_device(wholes, boxes, 24, interpolation)
    for crop, whole, (top, left, height, width, mirrored) in zip(crops, wholes, boxes, strict=True):
        box = whole[None, :, top : top + height, left : left + width].float()
        expected = torch.nn.functional.interpolate(box, (24, 24), mode=interpolation, antialias=True)[0].clamp(0, 255)
        expected = expected.flip(2) if mirrored else expected
        # note: half a level is the rounding
        assert (crop.permute(2, 0, 1) - expected).abs().max() < 0.502
    assert launches.count < count + 100


def test_a_thread_selects_its_gpu_before_it_uses_one(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[object] = []
    monkeypatch.setattr(torch.cuda, "set_device", order.append)
    monkeypatch.setattr(device_jpeg, "side_stream", lambda device: order.append("stream"))
    monkeypatch.setattr(torch.cuda, "stream", lambda _: (_ for _ in ()).throw(ZeroDivisionError))
    decoder = device_jpeg.DeviceDecoder(torch.device("cuda", 1), "bilinear", lambda *_: np.zeros(0))
    batch = device_jpeg.pack([device_jpeg.Jpeg(b"x", (0, 0, 1, 1, 0), 1, 3)])
    with pytest.raises(ZeroDivisionError):
        list(decoder.ahead([(batch, torch.zeros(1), np.zeros(1))]))
    assert order == [torch.device("cuda", 1), "stream"]


def test_evaluation_stays_on_the_cpu(images: Path) -> None:
    ours, theirs = ([*make_loaders(images, *w, "dataloader.workers=0").evaluate] for w in (GPU, GPU[1:]))
    assert same(ours, theirs)
    assert not decoded


def test_a_jpeg_that_the_device_refuses_is_decoded_by_the_cpu_or_named(
    images: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(jpegs: list[Tensor], device: torch.device) -> list[Tensor]:
        raise RuntimeError("nvjpegDecode failed: 5")

    here = stream(make_loaders(images, *GPU[1:], "dataloader.workers=0"))
    monkeypatch.setattr(device_jpeg, "decode_jpegs", fail)
    monkeypatch.setattr(device_jpeg, "_FAILURES", 100)
    assert same(here, stream(make_loaders(images, *GPU, "dataloader.workers=0"), epochs=(0, 1)))
    line = "dataloader.decode=gpu: the CPU decodes JPEGs that the GPU does not (nvjpegDecode failed: 5)\n"
    assert capsys.readouterr().out == line
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


def test_a_rotated_jpeg_is_left_to_the_cpu() -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    data = saved((40, 50), exif=exif)
    frame = plain_frame(data, upright=False)
    assert frame is not None
    assert not is_for_device(data, frame)


def test_a_run_ends_whose_gpu_decodes_nothing(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(jpegs: list[Tensor], device: torch.device) -> list[Tensor]:
        raise RuntimeError("nvjpegCreateEx failed: 7\nmore of it")

    monkeypatch.setattr("launcher.data.device_jpeg.decode_jpegs", fail)
    monkeypatch.setattr(device_jpeg, "_FAILURES", 3)
    with pytest.raises(MachineError, match=r"decoded none of 3 groups of JPEGs \(nvjpegCreateEx failed: 7\); set data"):
        stream(make_loaders(images, *GPU, "dataloader.workers=0"))


def test_without_the_decoder_the_error_has_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.data.jpeg.find_spec", lambda name: None if name == "torchcodec" else find_spec(name))
    with pytest.raises(UserError, match=r"gpu: torchcodec is not installed; run .* 'torchcodec>=0.17', or set"):
        with_decoder(compose(["dataloader.decode=gpu"]).config)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "dataloader.decode=gpu: needs a GPU, and this run is on the CPU; set dataloader.decode=cpu"),
        (["dataloader.dct_scaling=true"], "set dataloader.dct_scaling=false, or dataloader.decode=cpu"),
        (["dataloader=ffcv"], "dataloader.decode=gpu (command line): no such key here; it is for dataloader=auto, "),
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
