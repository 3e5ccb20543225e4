"""The batched operations against Pillow's, one by one, on smooth pictures with noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from launcher.algorithms import pillow_operations
from launcher.algorithms.image_operations import OPERATIONS

MAGNITUDES = {
    "posterize": [1, 2, 3, 4, 8],
    "solarize": [0, 1, 100, 255, 256],
    "rotate": [-135, -30, 0, 17, 30],
    "shear_x": [-0.3, 0, 0.13, 0.3, 0.99],
    "shear_y": [-0.3, 0, 0.13, 0.3, 0.99],
    "translate_x": [-11, 0, 3, 11, 31],
    "translate_y": [-11, 0, 3, 11, 31],
    "color": [0.01, 0.1, 1.0, 1.5, 1.9],
    "contrast": [0.01, 0.1, 1.0, 1.5, 1.9],
    "brightness": [0.01, 0.1, 1.0, 1.5, 1.9],
    "sharpness": [0.01, 0.1, 1.0, 1.5, 1.9],
}
GEOMETRIC = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")


def pictures(height: int = 40, width: int = 56) -> np.ndarray:
    """uint8 [5, H, W, 3]: gradients with noise, one flat, one of two values, one narrow in range."""
    random = np.random.default_rng(0)
    waves = np.sin(np.arange(height)[:, None, None] / 9) + np.cos(np.arange(width)[None, :, None] / 7 + np.arange(3))
    base = (waves + 2) * 63 + random.normal(0, 12, (5, height, width, 3))
    base[1] = 77
    base[2] = np.where(base[2] > 128, 200, 20)
    base[3] = 100 + base[3] / 10
    return base.clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_gives_pillows_pixels(name: str, memory_format: torch.memory_format) -> None:
    batch = pictures()
    images = torch.from_numpy(batch).permute(0, 3, 1, 2).contiguous(memory_format=memory_format)
    sizes = MAGNITUDES.get(name, [0.0] * 5)
    ours = OPERATIONS[name](images, torch.tensor(sizes, dtype=torch.float32)).permute(0, 2, 3, 1).numpy()
    assert ours.dtype == np.uint8
    for picture, size, got in zip(batch, sizes, ours, strict=True):
        expected = np.asarray(pillow_operations.OPERATIONS[name](Image.fromarray(picture), size)).astype(int)
        difference = np.abs(got.astype(int) - expected)
        if name in GEOMETRIC:
            # note: float32 against float64 coordinates may put an edge pixel inside for one and outside for the other
            assert (difference > 1).mean() < 0.01, size
        else:
            assert difference.max() <= 1, size


def test_a_magnitude_belongs_to_its_image() -> None:
    images = torch.from_numpy(pictures()).permute(0, 3, 1, 2)
    sizes = torch.tensor([0.1, 0.5, 1.0, 1.5, 1.9])
    whole = OPERATIONS["brightness"](images, sizes)
    for number in range(5):
        alone = OPERATIONS["brightness"](images[number : number + 1], sizes[number : number + 1])
        assert torch.equal(alone[0], whole[number])
