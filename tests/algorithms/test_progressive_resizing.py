from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import interpolate

from launcher.algorithms.progressive_resizing import resize
from tests.transforms import transformed


@pytest.mark.parametrize(("step", "expected"), [(0, 32), (39, 32), (40, 32), (60, 48), (79, 64), (80, 64), (99, 64)])
def test_the_image_size_follows_the_schedule(
    bound: Callable[..., Any], batch: Callable[..., Any], step: int, expected: int
) -> None:
    loaded = batch(size=64, step=step)
    changed = transformed(bound("progressive_resizing"), loaded)
    assert changed.images.shape == (8, 3, expected, expected)
    assert changed.images.is_contiguous(memory_format=torch.channels_last)
    if expected == 64:
        assert changed.images is loaded.images


def test_bilinear_resizing_has_pillows_filter() -> None:
    pixels = np.random.default_rng(0).random((30, 30), dtype=np.float32)
    expected = np.asarray(Image.fromarray(pixels).resize((12, 12), Image.Resampling.BILINEAR))
    result = resize(torch.from_numpy(pixels)[None, None], (12, 12), "bilinear")[0, 0]
    np.testing.assert_allclose(result.numpy(), expected, atol=1e-5)


def test_nearest_resizing_selects_the_pixels_of_composer() -> None:
    """Composer passes a scale to PyTorch instead of a size, with the same pixels at every published size of 176."""
    images = torch.arange(176.0).view(1, 1, 1, 176).expand(1, 1, 176, 176)
    for size in range(88, 176, 4):
        expected = interpolate(images, scale_factor=size / 176, mode="nearest")
        if expected.shape[-1] == size:
            assert torch.equal(resize(images, (size, size), "nearest"), expected)
        else:
            assert (size, expected.shape[-1]) == (120, 119)
            assert (resize(images, (119, 119), "nearest") - expected).abs().max() <= 2
