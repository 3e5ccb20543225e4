from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms import v2

from launcher.algorithms.cutmix import box
from launcher.algorithms.cutout import erase
from launcher.algorithms.mixup import mix_targets
from tests.transforms import transformed


@given(st.integers(8, 40), st.integers(8, 40), st.floats(0.01, 0.99), st.integers(0, 2**31))
def test_same_as_torchvisions_for_the_same_draws(height: int, width: int, part: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    row, column = int(random.integers(height)), int(random.integers(width))
    images = torch.from_numpy(random.random((6, 3, height, width), dtype=np.float32))
    labels = torch.arange(6)
    transform = v2.CutMix(num_classes=6)
    draws = [torch.tensor([column]), torch.tensor([row])]
    with (
        mock.patch.object(transform._dist, "sample", return_value=torch.tensor([1 - part])),
        mock.patch("torch.randint", side_effect=draws),
    ):
        expected_images, expected_targets = transform(images, labels)
    rolled = torch.arange(6).roll(1)
    # note: torchvision rounds 1 - part to float32
    top, bottom, left, right = box(height, width, 1 - float(torch.tensor(1 - part)), row, column)
    weight = torch.tensor((bottom - top) * (right - left) / (height * width))
    assert torch.equal(erase(images, torch.tensor([[top, left, bottom, right]]), images[rolled]), expected_images)
    torch.testing.assert_close(mix_targets(labels, rolled, weight, 6, "both"), expected_targets)


def test_box_in_the_middle_has_the_drawn_area() -> None:
    top, bottom, left, right = box(200, 100, 0.25, 100, 50)
    assert (top, bottom, left, right) == (50, 150, 25, 75)
    assert math.isclose((bottom - top) * (right - left) / 20000, 0.25)
    assert box(10, 10, 1.0, 0, 9) == (0, 5, 4, 10)


@pytest.mark.parametrize("step", range(5))
def test_targets_follow_the_pixels(bound: Callable[..., Any], batch: Callable[..., Any], step: int) -> None:
    """With pictures of one value each, the share of another's pixels is the share of its class."""
    made = batch(side=16, step=step)
    made = replace(made, images=torch.arange(8.0).view(8, 1, 1, 1).expand(8, 3, 16, 16).contiguous())
    changed = transformed(bound("cutmix"), made)
    for image, target in zip(changed.images[:, 0], changed.targets, strict=True):
        pixels = F.one_hot(image.long(), 10).float().mean((0, 1))
        torch.testing.assert_close(target, pixels)
    assert made.images[0].eq(0).all()
