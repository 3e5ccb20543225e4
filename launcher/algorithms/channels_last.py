"""Channels last: images and weights in NHWC memory order, the layout of tensor cores (PyTorch memory formats)."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, Self

from pydantic.dataclasses import dataclass

from launcher.algorithms.base import Algorithm, Size, Transform
from launcher.config.fields import STRICT
from launcher.data.batch import Batch
from launcher.later import nn, torch


@dataclass(config=STRICT)
class ChannelsLast(Algorithm, change_model=50, change_batch=80, acts_on=("image", "label", "mask")):
    """Changes the strides of convolution weights, never their values; loaders already give images in this order."""

    in_channels_last = True

    @classmethod
    def advice(cls, values: Self | None, bound: Literal["data", "step"]) -> str | None:
        if bound == "step" and values is None:
            return "algorithms.channels_last=on: faster memory order for convolutions"
        return None

    def change_model(self, model: nn.Module) -> None:
        model.to(memory_format=torch.channels_last)

    def change_batch(self, batch: Batch, size: Size) -> Transform:
        return Transform(
            (), lambda batch: replace(batch, inputs=batch.inputs.contiguous(memory_format=torch.channels_last))
        )
