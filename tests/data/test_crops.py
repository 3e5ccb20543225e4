"""Crops against torchvision's: the same distribution, the same pixels."""

import numpy as np
import pytest
import torch
import torchvision.transforms.v2 as T
import torchvision.transforms.v2.functional as F
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy import stats

from launcher.config.compose import compose
from launcher.data.crops import Crops, centre_cut, cut, random_crops

IMAGE = compose([]).config.image


def random_image(height: int, width: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize(("height", "width"), [(375, 500), (64, 64), (50, 400)])
def test_crops_are_distributed_as_torchvisions(height: int, width: int) -> None:
    torch.manual_seed(0)
    theirs_of = T.RandomResizedCrop(10)
    blank = torch.empty(3, height, width)
    theirs = [theirs_of.make_params([blank]) for _ in range(3000)]
    crops = Crops(IMAGE, seed=1, epoch=2, indices=np.arange(3000))
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


@given(st.integers(1, 600), st.integers(1, 600), st.integers(0, 10**6))
def test_crops_are_within_any_image(height: int, width: int, index: int) -> None:
    crops = Crops(IMAGE, seed=0, epoch=0, indices=np.array([index]))
    top, left, box_height, box_width, _ = crops.box(0, height, width)
    assert 0 <= top < top + box_height <= height
    assert 0 <= left < left + box_width <= width


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("flip", [False, True])
def test_cut_pixels_are_torchvisions(interpolation: str, flip: bool) -> None:
    source = random_image(90, 120)
    mode = T.InterpolationMode(interpolation)
    expected = F.resized_crop(source, 7, 11, 60, 70, [32, 32], interpolation=mode)
    expected = F.horizontal_flip(expected) if flip else expected
    got = cut(np.array(source), (7, 11, 60, 70, int(flip)), 32, interpolation)
    assert np.array_equal(got, np.asarray(expected))


@pytest.mark.parametrize(("height", "width"), [(90, 121), (121, 90), (64, 64), (300, 77), (1, 61), (2, 185), (604, 4)])
@pytest.mark.parametrize("size", [64, 69])
def test_centre_pixels_are_torchvisions(height: int, width: int, size: int) -> None:
    """Also of images more than 50 times as long as wide, and of crops larger than the image."""
    source = random_image(height, width)
    expected = T.CenterCrop(size)(T.Resize(66)(source))
    assert np.array_equal(centre_cut(np.array(source), 66, size, "bilinear"), np.asarray(expected))
