"""Crops against torchvision's: the same distribution, the same pixels."""

import io

import numpy as np
import PIL
import pytest
import torch
import torchvision.transforms.v2 as T
import torchvision.transforms.v2.functional as F
from PIL import Image
from scipy import stats

from launcher.config.compose import compose
from launcher.data.crops import Crops, centre_cut, cut, random_crops, resize_by_pillow, resize_by_torch
from launcher.data.images import CentreCrops, evaluation_input
from tests.images import random_image

IMAGE = compose([]).config.image
# note: plain Pillow rounds otherwise, which the test of the page of fidelity bounds
rounds_as_torch = pytest.mark.skipif(".post" not in PIL.__version__, reason="needs Pillow-SIMD's pixels")


@pytest.mark.parametrize(
    ("height", "width", "size", "ratio"),
    [
        *((height, width, "176", (3 / 4, 4 / 3)) for height, width in ((375, 500), (64, 64), (50, 400))),
        (200, 500, "[32,64]", (1.5, 8 / 3)),
    ],
)
def test_crops_are_distributed_as_torchvisions(height: int, width: int, size: str, ratio: tuple[float, float]) -> None:
    torch.manual_seed(0)
    theirs_of = T.RandomResizedCrop(10, ratio=ratio)
    blank = torch.empty(3, height, width)
    theirs = [theirs_of.make_params([blank]) for _ in range(3000)]
    image = compose([f"image.train_size={size}"]).config.image
    crops = Crops(image, seed=1, epoch=2, indices=np.arange(3000))
    ours = [crops.box(i, height, width) for i in range(3000)]
    for place, name in enumerate(("top", "left", "height", "width")):
        assert stats.ks_2samp([box[place] for box in ours], [c[name] for c in theirs]).pvalue > 1e-3, name
    assert abs(np.mean([box[4] for box in ours]) - 0.5) < 0.05


def test_alternating_flips_mirror_half_of_the_images_and_then_the_others() -> None:
    image = compose(["image.flip=alternating"]).config.image
    sizes, indices = np.full(1000, 64), np.arange(1000)
    epochs = [random_crops(image, sizes, sizes, seed=1, epoch=epoch, indices=indices) for epoch in range(3)]
    drawn = random_crops(IMAGE, sizes, sizes, seed=1, epoch=0, indices=indices)
    first, second, third = (boxes[:, 4] for boxes in epochs)
    assert abs(first.mean() - 0.5) < 0.05
    assert (second == 1 - first).all()
    assert (third == first).all()
    assert (epochs[0][:, :4] == drawn[:, :4]).all()
    assert (epochs[0][:, :4] != epochs[2][:, :4]).any()


@rounds_as_torch
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("flip", [False, True])
def test_cut_pixels_are_torchvisions(interpolation: str, flip: bool) -> None:
    source = random_image(90, 120)
    mode = T.InterpolationMode(interpolation)
    expected = F.resized_crop(source, 7, 11, 60, 70, [32, 32], interpolation=mode)
    expected = F.horizontal_flip(expected) if flip else expected
    got = cut(np.array(source), (7, 11, 60, 70, int(flip)), 32, interpolation)
    assert np.array_equal(got, np.asarray(expected))


@rounds_as_torch
@pytest.mark.parametrize(("height", "width"), [(90, 121), (121, 90), (64, 64), (300, 77), (1, 61), (2, 185), (604, 4)])
@pytest.mark.parametrize("size", [64, 69])
def test_centre_pixels_are_torchvisions(height: int, width: int, size: int) -> None:
    """Also of images more than 50 times as long as wide, and of crops larger than the image."""
    source = random_image(height, width)
    expected = T.CenterCrop(size)(T.Resize(66)(source))
    assert np.array_equal(centre_cut(np.array(source), 66, size, "bilinear"), np.asarray(expected))


@pytest.mark.parametrize("resize", [66, 66.5])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_the_decoder_pillow_resizes_evaluation_images_by_pillow(
    resize: float, interpolation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another filter shows who resizes, since Pillow-SIMD has torch's pixels."""
    boxes = dict.fromkeys(("bilinear", "bicubic"), Image.Resampling.BOX)
    monkeypatch.setattr("launcher.data.crops._RESAMPLING", boxes)
    stream = io.BytesIO()
    random_image(90, 120).save(stream, "PNG")
    image = compose([f"image.eval_interpolation={interpolation}"]).config
    values = evaluation_input(image) | {"resize": resize}
    record = {"image": stream.getvalue(), "label": 0}
    by_torch, by_pillow = (CentreCrops(values, name).decode(record, 32, None)[0] for name in ("auto", "pillow"))
    pixels = np.array(random_image(90, 120))
    assert np.array_equal(by_pillow, centre_cut(pixels, resize, 32, interpolation, resize_by_pillow))
    assert np.array_equal(by_torch, centre_cut(pixels, resize, 32, interpolation))
    assert not np.array_equal(by_pillow, by_torch)


@pytest.mark.parametrize("decoder", ["pillow", "simplejpeg"])
def test_a_runs_evaluation_decodes_and_resizes_by_its_decoder(decoder: str) -> None:
    config = compose(["dataset=imagenet", f"dataloader.decoder={decoder}"]).config
    evaluation = config.task.evaluation_decoder(config)
    assert isinstance(evaluation, CentreCrops)
    assert evaluation.decoder == decoder
    assert (evaluation.resize is resize_by_pillow) == (decoder == "pillow")


@pytest.mark.parametrize(("interpolation", "levels"), [("bilinear", 1), ("bicubic", 2)])
def test_crops_differ_from_pillows_as_the_page_of_fidelity_says(interpolation: str, levels: int) -> None:
    """They are equal where Pillow-SIMD is installed."""
    random, counts = np.random.default_rng(0), np.zeros(256, np.int64)
    for _ in range(20):
        height, width, size = random.integers((240, 240, 64), (500, 500, 225)).tolist()
        photo = np.array(random_image(height // 8, width // 8).resize((width, height), Image.Resampling.BICUBIC))
        pillows, ours = (resize(photo, size, size, interpolation) for resize in (resize_by_pillow, resize_by_torch))
        counts += np.bincount(np.abs(pillows.astype(int) - ours).ravel(), minlength=256)
    assert counts[levels + 1 :].sum() == 0
    assert counts[1] < 0.035 * counts.sum()
    assert counts[2] < 0.00001 * counts.sum()
