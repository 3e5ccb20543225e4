"""The layers of BlurPool (Zhang 2019)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def binomial_filter() -> Tensor:
    """Return the filter [1 2 1] x [1 2 1] / 16, float32 [1, 1, 3, 3]."""
    row = torch.tensor([1.0, 2.0, 1.0])
    return (row[:, None] * row[None, :] / 16)[None, None]


def blur(images: Tensor, kernel: Tensor, stride: int = 1) -> Tensor:
    """Filter each channel of [B, C, H, W] by a kernel [1, 1, 3, 3] with zero padding 1 and a stride."""
    channels = images.shape[1]
    kernels = kernel.to(images.dtype).expand(channels, -1, -1, -1)
    return F.conv2d(images, kernels, stride=stride, padding=1, groups=channels)


class BlurConv2d(nn.Conv2d):
    """A strided convolution after a blur, or without `blur_first` a dense convolution and a blur with the stride.

    Parameter names are those of the plain convolution.
    """

    blur_first: bool
    blur_filter: Tensor

    def forward(self, images: Tensor) -> Tensor:
        if not self.blur_first:
            dense = F.conv2d(images, self.weight, self.bias, 1, self.padding, self.dilation, self.groups)
            return blur(dense, self.blur_filter, self.stride[0])
        if self.kernel_size == (1, 1):
            # note: a 1x1 convolution only reads every stride-th pixel, so the blur skips the others
            small = blur(images, self.blur_filter, self.stride[0])
            return F.conv2d(small, self.weight, self.bias, 1, 0, 1, self.groups)
        return super().forward(blur(images, self.blur_filter))


class BlurMaxPool2d(nn.MaxPool2d):
    """Max pooling with stride 1, then a blur with the stride of the pool."""

    blur_filter: Tensor

    def forward(self, images: Tensor) -> Tensor:
        dense = F.max_pool2d(images, self.kernel_size, 1, self.padding, self.dilation)
        stride = self.stride if isinstance(self.stride, int) else self.stride[0]
        return blur(dense, self.blur_filter, stride)


def blur_pool(
    network: nn.Module, *, replace_convs: bool, replace_maxpool: bool, min_channels: int, blur_first: bool
) -> None:
    """Replace strided convolutions of at least `min_channels` inputs, and max pooling, in place."""
    device = next(network.parameters()).device
    for module in network.modules():
        # note: changing the class keeps weights, names and hooks
        if type(module) is nn.Conv2d and max(module.stride) > 1:
            if not replace_convs or module.in_channels < min_channels:
                continue
            module.__class__ = BlurConv2d
            assert isinstance(module, BlurConv2d)
            module.blur_first = blur_first
        elif type(module) is nn.MaxPool2d and replace_maxpool:
            module.__class__ = BlurMaxPool2d
        else:
            continue
        module.register_buffer("blur_filter", binomial_filter().to(device), persistent=False)
