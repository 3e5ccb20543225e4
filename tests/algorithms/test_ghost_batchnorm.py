from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn


@pytest.mark.parametrize(("size", "chunks"), [(8, [4, 4]), (10, [4, 4, 2]), (3, [3])])
def test_each_chunk_is_normalized_alone_and_updates_the_statistics_once(
    bound: Callable[..., Any], size: int, chunks: list[int]
) -> None:
    model = nn.Sequential(nn.BatchNorm2d(5))
    names = list(model.state_dict())
    bound("ghost_batchnorm", "batch_size=8", ghost_batch_size=4).change_model(model)
    assert type(model[0]).__name__ == "GhostBatchNorm2d"
    assert list(model.state_dict()) == names
    images = torch.randn(size, 5, 6, 6) * 3 + 1
    outputs, mean, variance = [], torch.zeros(5), torch.ones(5)
    for chunk in images.split(chunks):
        chunk_mean, chunk_variance = chunk.mean((0, 2, 3)), chunk.var((0, 2, 3), correction=0)
        outputs.append(
            (chunk - chunk_mean[None, :, None, None]) / torch.sqrt(chunk_variance + 1e-5)[None, :, None, None]
        )
        mean = 0.9 * mean + 0.1 * chunk_mean
        variance = 0.9 * variance + 0.1 * chunk.var((0, 2, 3))
    torch.testing.assert_close(model(images), torch.cat(outputs), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model[0].running_mean, mean)
    torch.testing.assert_close(model[0].running_var, variance)
    assert model[0].num_batches_tracked == len(chunks)
