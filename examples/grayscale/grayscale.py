"""Grayscale (Chen et al. 2020, SimCLR): some images lose their colour."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic.dataclasses import dataclass

from launcher.algorithms.base import Algorithm, Size, Transform
from launcher.compute import randomness
from launcher.config.fields import STRICT, Probability
from launcher.data.batch import Batch
from launcher.later import torch

if TYPE_CHECKING:
    from torch import Tensor


def without_colour(images: Tensor, chosen: Tensor) -> Tensor:
    """Turn the chosen (bool [B]) of the images [B, 3, H, W] gray."""
    from torchvision.transforms.v2.functional import rgb_to_grayscale

    gray = rgb_to_grayscale(images, num_output_channels=3)
    return torch.where(chosen.view(-1, 1, 1, 1), gray, images)


@dataclass(config=STRICT)
class Grayscale(Algorithm, change_batch=-5, acts_on=("image", "label", "mask")):
    """Draws which images of a batch turn gray."""

    probability: Probability

    def change_batch(self, batch: Batch, size: Size) -> Transform:
        draws = randomness.uniforms(batch.moment.seed, "grayscale", batch.moment.epoch, batch.indices, 1)[:, 0]
        chosen = draws < self.probability
        return Transform([chosen], lambda batch, chosen: replace(batch, inputs=without_colour(batch.inputs, chosen)))
