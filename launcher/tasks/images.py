"""What all tasks of images have in common: images as inputs, which the device normalizes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic.dataclasses import dataclass

from launcher.config.fields import STRICT
from launcher.config.tasks import TaskConfig
from launcher.data.batch import Batch, normalize
from launcher.data.classes import blank_labels
from launcher.data.pixel_types import PixelType
from launcher.later import torch
from launcher.tasks import Task

if TYPE_CHECKING:
    from torch import Tensor

    from launcher.config.choices import LossConfig, Scores
    from launcher.config.schema import Dataset, RunConfig
    from launcher.data.images import ChangeImage
    from launcher.data.index import Images
    from launcher.data.records import Decoder, Records


@dataclass(frozen=True, config=STRICT)
class ImageTaskConfig(TaskConfig):
    """Base of the values of tasks of images with labels."""

    needs = ("image", "label")
    axes = 2
    unit = "px"
    view_title = "image px"
    view_keys = ("image.train_size", "image.eval_size")

    def full_view(self, config: RunConfig) -> int:
        return config.scaled_size(config.image.train_size)

    def evaluation_view(self, config: RunConfig) -> int:
        return config.scaled_size(config.image.eval_size)

    def loaded_evaluation_view(self, config: RunConfig) -> int:
        if config.image.eval_views in ("centre", "shifts"):
            return self.evaluation_view(config)
        return round(config.scaled_size(config.image.eval_resize))

    def check_views(self, config: RunConfig) -> None:
        # note: those that are moved need no larger square
        if config.image.eval_views != "shifts" or self.labelled == "pixels":
            super().check_views(config)

    def sizes(self, config: RunConfig) -> str:
        return f"{config.scaled_size(config.image.eval_resize):g} -> {self.evaluation_view(config)} px"

    def scores(self, loss: LossConfig) -> Scores:
        usual: dict[str, Scores] = {"class": "softmax", "classes": "sigmoid", "numbers": "numbers"}
        return loss.scores or usual[self.labelled]

    def decoder(self, config: RunConfig, change_image: ChangeImage | None) -> Decoder:
        from launcher.data.images import RandomCrops  # note: torch

        return RandomCrops(config, change_image)

    def evaluation_decoder(self, config: RunConfig) -> Decoder:
        from launcher.data.images import CentreCrops, evaluation_input  # note: torch

        return CentreCrops(evaluation_input(config), getattr(config.dataloader, "decoder", "auto"))

    def records(self, folder: Images, decoder: Decoder) -> Records:
        from launcher.data.records import Records  # note: torch

        return Records(folder, decoder)


def displayed(images: Tensor, dataset: Dataset) -> np.ndarray:
    """Return images [B, C, H, W], divided by `dataset.largest`, as RGB to look at, uint8 [B, H, W, 3].

    These are the first three channels, or the first one as gray; float32 shows two deviations around the mean.
    """
    shown = images[:, :3] if dataset.channels > 2 else images[:, :1].expand(-1, 3, -1, -1)
    if dataset.dtype == "float32":
        numbers = range(3) if dataset.channels > 2 else (0, 0, 0)
        mean, std = (torch.tensor([one[n] for n in numbers]).view(1, 3, 1, 1) for one in dataset.normalization)
        shown = (shown - mean) / (4 * std) + 0.5
    pixels: np.ndarray = shown.mul(255).round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return pixels


class ImageTask(Task):
    """Has inputs [B, C, H, W], which the network gets normalized by the data set's mean and deviation."""

    def prepare(self, batch: Batch) -> Batch:
        dataset = self.config.dataset
        return replace(batch, inputs=normalize(batch.inputs, *dataset.normalization, self.dtype, dataset.largest))

    def blank(self, count: int, view: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return black images in the loaders' memory order, with the first label."""
        images = self.blank_images(count, view, device)
        label = torch.from_numpy(blank_labels(self.values, self.values.outputs(self.config.dataset))[:1])
        return images, label.expand(count, *label.shape[1:]).contiguous().to(device)

    def blank_images(self, count: int, view: int, device: torch.device) -> Tensor:
        """Return black images as loaded."""
        of_type = PixelType.of(self.config.dataset)
        dtype = getattr(torch, of_type.loaded)
        return torch.zeros(count, view, view, of_type.channels, dtype=dtype, device=device).permute(0, 3, 1, 2)

    def card_input(self) -> dict[str, Any]:
        from launcher.data.images import evaluation_input  # note: torch

        return evaluation_input(self.config)

    def passes(self, inputs: Tensor) -> list[Tensor]:
        """Return the views of each image, and their mirror images if the run averages these."""
        views = self.views(inputs)
        return [one for view in views for one in (view, view.flip(3))] if self.config.image.eval_flip_average else views

    def average(self, outputs: list[Tensor]) -> Tensor:
        if self.config.image.eval_views == "shifts":
            still = len(outputs) // 3
            return (_mean(outputs[:still]) + _mean(outputs[still:])) / 2
        return _mean(outputs)

    def views(self, inputs: Tensor) -> list[Tensor]:
        """Return the views [B, C, size, size] of prepared inputs that the network gets, as `image.eval_views`.

        5crop: the corners and the centre (Krizhevsky et al. 2012). scales: centred squares of `eval_size`, of
        `eval_resize` and midway, resized. shifts: the image, and itself moved by a pixel up and left, and down and
        right, with reflected edges; the moved ones count half (Jordan 2024, airbench).
        """
        kind = self.config.image.eval_views
        if kind == "centre":
            return [inputs]
        if kind == "shifts":
            padded = torch.nn.functional.pad(inputs, (1, 1, 1, 1), mode="reflect")
            return [inputs, padded[..., :-2, :-2], padded[..., 2:, 2:]]
        size, loaded = self.values.evaluation_view(self.config), inputs.shape[3]
        if kind == "5crop":
            last = loaded - size
            corners = [(0, 0), (0, last), (last, 0), (last, last), (last // 2, last // 2)]
            return [inputs[..., top : top + size, left : left + size] for top, left in corners]
        return [_scaled(inputs, square, size) for square in (size, (size + loaded) // 2, loaded)]


def _mean(outputs: list[Tensor]) -> Tensor:
    return sum(outputs[1:], start=outputs[0]) / len(outputs) if len(outputs) > 1 else outputs[0]


def _scaled(images: Tensor, square: int, size: int) -> Tensor:
    """Return the centred squares of images [B, C, H, W], resized to [B, C, size, size], antialiased."""
    first = (images.shape[3] - square) // 2
    centre = images[..., first : first + square, first : first + square]
    shape = (size, size)
    resize = torch.nn.functional.interpolate
    # note: bfloat16 has no antialiased resize on every device
    return centre if square == size else resize(centre.float(), shape, mode="bilinear", antialias=True).to(images.dtype)
