"""BlurPool (Zhang 2019): a low-pass filter before every downsampling, against aliasing."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from launcher.algorithms.base import Algorithm


def blur(images: Tensor, stride: int = 1) -> Tensor:
    """Depthwise binomial filter [1 2 1] x [1 2 1] / 16 on [B, C, H, W], zero padding 1, with a stride."""
    channels = images.shape[1]
    row = torch.tensor([1.0, 2.0, 1.0], dtype=images.dtype, device=images.device)
    kernel = (row[:, None] * row[None, :] / 16).expand(channels, 1, 3, 3)
    return F.conv2d(images, kernel, stride=stride, padding=1, groups=channels)


class BlurConv2d(nn.Conv2d):
    """A strided convolution that blurs first, or with `blur_first` off convolves densely and blurs with the stride.

    Parameter names are the plain convolution's.
    """

    blur_first = True

    def forward(self, images: Tensor) -> Tensor:
        if not self.blur_first:
            dense = F.conv2d(images, self.weight, self.bias, 1, self.padding, self.dilation, self.groups)
            return blur(dense, self.stride[0])
        if self.kernel_size == (1, 1):
            # note: a 1x1 convolution reads only every stride-th pixel, so the blur need not make the others
            return F.conv2d(blur(images, self.stride[0]), self.weight, self.bias, 1, 0, 1, self.groups)
        return super().forward(blur(images))


class BlurMaxPool2d(nn.MaxPool2d):
    """Max-pooling with stride 1, then the blur with the pool's stride."""

    def forward(self, images: Tensor) -> Tensor:
        dense = F.max_pool2d(images, self.kernel_size, 1, self.padding, self.dilation)
        stride = self.stride if isinstance(self.stride, int) else self.stride[0]
        return blur(dense, stride)


class BlurPool(Algorithm):
    """Replaces strided convolutions of enough input channels, and max-pools, in place."""

    def change_model(self, model: nn.Module) -> None:
        for module in model.modules():
            # note: changing the class keeps weights, names and hooks as they are
            if self.values.replace_convs and type(module) is nn.Conv2d and self._strided(module):
                module.__class__ = BlurConv2d
                module.blur_first = self.values.blur_first
            elif self.values.replace_maxpool and type(module) is nn.MaxPool2d:
                module.__class__ = BlurMaxPool2d

    def _strided(self, conv: nn.Conv2d) -> bool:
        return max(conv.stride) > 1 and conv.in_channels >= self.values.min_channels


ALGORITHM = BlurPool
