from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import resnet50

from launcher.algorithms.blurpool_layers import BlurConv2d, BlurMaxPool2d, binomial_filter, blur


def blurred(images: Tensor) -> Tensor:
    """Blur by weighted sums of shifted images, as the filter [1 2 1] x [1 2 1] / 16 is defined."""
    padded = np.pad(images.numpy(), ((0, 0), (0, 0), (1, 1), (1, 1)))
    height, width = images.shape[2:]
    total = np.zeros(images.shape, dtype=np.float32)
    for i, a in enumerate((1, 2, 1)):
        for j, b in enumerate((1, 2, 1)):
            total += a * b / 16 * padded[:, :, i : i + height, j : j + width]
    return torch.from_numpy(total)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [8, 9])
def test_blur_is_the_binomial_filter(stride: int, size: int) -> None:
    images = torch.randn(2, 5, size, size)
    expected = blurred(images)[:, :, ::stride, ::stride]
    torch.testing.assert_close(blur(images, binomial_filter(), stride), expected, rtol=1e-5, atol=1e-6)


def test_a_resnet50_has_six_blurred_convolutions_and_blurred_pooling(bound: Callable[..., Any]) -> None:
    model = resnet50(num_classes=10)
    names, images = list(model.state_dict()), torch.randn(2, 3, 65, 65).contiguous(memory_format=torch.channels_last)
    shape = model.maxpool(model.conv1(images)).shape
    bound("blurpool").change_model(model)
    assert sum(isinstance(module, BlurConv2d) for module in model.modules()) == 6
    assert sum(isinstance(module, BlurMaxPool2d) for module in model.modules()) == 1
    assert type(model.conv1) is nn.Conv2d
    assert list(model.state_dict()) == names
    features = model.maxpool(model.conv1(images))
    assert features.is_contiguous(memory_format=torch.channels_last)
    assert features.shape == shape
    with torch.no_grad():
        assert model(images).shape == (2, 10)


@pytest.mark.parametrize(("kernel", "padding"), [(1, 0), (3, 1)])
@pytest.mark.parametrize("blur_first", [True, False])
def test_a_strided_convolution_is_blurred_before_or_after(
    bound: Callable[..., Any], kernel: int, padding: int, blur_first: bool
) -> None:
    conv = nn.Conv2d(16, 4, kernel, stride=2, padding=padding)
    images = torch.randn(2, 16, 9, 9)
    weight, bias = conv.weight.detach(), conv.bias.detach()
    if blur_first:
        expected = F.conv2d(blurred(images), weight, bias, stride=2, padding=padding)
    else:
        expected = blurred(F.conv2d(images, weight, bias, padding=padding))[:, :, ::2, ::2]
    bound("blurpool", blur_first=str(blur_first).lower()).change_model(nn.Sequential(conv))
    torch.testing.assert_close(conv(images), expected, rtol=1e-4, atol=1e-5)


def test_max_pooling_is_dense_and_then_blurred(bound: Callable[..., Any]) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.MaxPool2d(3, 2, 1))
    bound("blurpool").change_model(model)
    images = torch.randn(2, 4, 10, 10)
    expected = blurred(F.max_pool2d(images, 3, 1, 1))[:, :, ::2, ::2]
    torch.testing.assert_close(model[1](images), expected)


def test_the_config_selects_the_layers_to_replace(bound: Callable[..., Any]) -> None:
    model = nn.Sequential(nn.Conv2d(16, 8, 3, stride=2), nn.Conv2d(15, 8, 3, stride=2), nn.Conv2d(16, 8, 3))
    bound("blurpool", replace_maxpool="false").change_model(model)
    assert [type(module) for module in model] == [BlurConv2d, nn.Conv2d, nn.Conv2d]
    bound("blurpool", min_channels=15).change_model(model)
    assert [type(module) for module in model] == [BlurConv2d, BlurConv2d, nn.Conv2d]
    pooling = nn.Sequential(nn.Conv2d(16, 8, 3, stride=2), nn.MaxPool2d(3, 2, 1))
    bound("blurpool", replace_convs="false").change_model(pooling)
    assert [type(module) for module in pooling] == [nn.Conv2d, BlurMaxPool2d]
