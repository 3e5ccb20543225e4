"""Random translations against crops of padded images, and their draws."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats

from launcher.algorithms.base import Algorithm
from launcher.algorithms.translation import translated
from launcher.data.batch import Batch
from tests.transforms import transformed


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_it_is_a_crop_after_padding_by_reflection(dtype: torch.dtype) -> None:
    images = (torch.rand(25, 3, 9, 8) * 255).to(dtype).contiguous(memory_format=torch.channels_last)
    shifts = torch.tensor([(y, x) for y in range(-2, 3) for x in range(-2, 3)])
    padded = F.pad(images.float(), (2, 2, 2, 2), "reflect")
    pairs = zip(padded, shifts.tolist(), strict=True)
    expected = torch.stack([image[:, 2 + y : 11 + y, 2 + x : 10 + x] for image, (y, x) in pairs])
    ours = translated(images, shifts)
    assert torch.equal(ours.float(), expected)
    assert ours.dtype == dtype
    assert ours.is_contiguous(memory_format=torch.channels_last)


def test_all_distances_are_equally_likely(bound: Callable[..., Algorithm], batch: Callable[..., Batch]) -> None:
    algorithm = bound("translation", distance=0.0625)
    rows = torch.arange(32).view(1, 1, 32, 1).expand(2000, 3, 32, 32).to(torch.uint8)
    columns = rows.transpose(2, 3)
    loaded = batch(2000, 32)
    moved = [transformed(algorithm, replace(loaded, inputs=images)).inputs[:, 0, 15, 15] for images in (rows, columns)]
    assert {*moved[0].tolist()} == {*moved[1].tolist()} == {13, 14, 15, 16, 17}
    table = np.histogram2d(*(one.numpy() for one in moved), bins=5)[0]
    assert stats.chisquare(table.ravel()).pvalue > 1e-4
