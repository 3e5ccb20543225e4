"""Channels last: images and weights in NHWC memory order, the layout tensor cores read (PyTorch memory formats)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from launcher.algorithms.base import Algorithm
from launcher.data.batch import Batch


class ChannelsLast(Algorithm):
    """Convolution weights change their strides, never their values; images come from the loader in this order."""

    def change_model(self, model: nn.Module) -> None:
        model.to(memory_format=torch.channels_last)

    def change_batch(self, batch: Batch, model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> Batch:
        return replace(batch, images=batch.images.contiguous(memory_format=torch.channels_last))


ALGORITHM = ChannelsLast
