"""Channels last: images and weights in NHWC memory order, the layout of tensor cores (PyTorch memory formats)."""

from dataclasses import replace

import torch
from torch import nn

from launcher.algorithms.base import Algorithm, Size, Transform
from launcher.config.algorithms import ChannelsLastConfig
from launcher.data.batch import Batch


class ChannelsLast(Algorithm[ChannelsLastConfig]):
    """Changes the strides of convolution weights, never their values; loaders already give images in this order."""

    def change_model(self, model: nn.Module) -> None:
        model.to(memory_format=torch.channels_last)

    def change_batch(self, batch: Batch, size: Size) -> Transform:
        return Transform(
            (), lambda batch: replace(batch, images=batch.images.contiguous(memory_format=torch.channels_last))
        )
