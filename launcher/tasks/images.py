"""What all tasks of images have in common: images as inputs, which the device normalizes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic.dataclasses import dataclass

from launcher.config.declaration import Size
from launcher.config.fields import STRICT, edges, in_ratio, size_text
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


def _scaled_edges(config: RunConfig, size: int | list[int]) -> Size:
    return tuple(config.scaled_size(edge) for edge in edges(size))


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


@dataclass(config=STRICT)
class ImageTask(Task):
    """Has inputs [B, C, H, W], which the network gets normalized by the data set's mean and deviation.

    Base of the values of tasks of images with labels.
    """

    needs = ("image", "label")
    axes = 2
    unit = "px"
    view_title = "image px"
    view_keys = ("image.train_size", "image.eval_size")

    def full_size(self, config: RunConfig) -> Size:
        return _scaled_edges(config, config.image.train_size)

    def evaluation_size(self, config: RunConfig) -> Size:
        return _scaled_edges(config, config.image.eval_size)

    def loaded_evaluation_size(self, config: RunConfig) -> Size:
        size = self.evaluation_size(config)
        if config.image.eval_views in ("centre", "shifts"):
            return size
        return in_ratio(round(config.scaled_size(config.image.eval_resize)), size)

    def check_views(self, config: RunConfig) -> None:
        # note: those that are moved need no larger square
        if config.image.eval_views != "shifts" or self.labelled == "pixels":
            super().check_views(config)

    def sizes(self, config: RunConfig) -> str:
        resize, size = config.scaled_size(config.image.eval_resize), size_text(self.evaluation_size(config))
        return f"{resize:g} -> {size} px" if config.image.fit == "crop" else super().sizes(config)

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

    def prepare(self, batch: Batch) -> Batch:
        if batch.inputs.ndim == 2:
            return batch  # note: features of prepared images
        dataset = self.config.dataset
        return replace(batch, inputs=normalize(batch.inputs, *dataset.normalization, self.dtype, dataset.largest))

    def blank(self, count: int, size: Size, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return black images in the loaders' memory order, with the first label."""
        images = self.blank_images(count, size, device)
        label = torch.from_numpy(blank_labels(self, self.outputs(self.config.dataset))[:1])
        return images, label.expand(count, *label.shape[1:]).contiguous().to(device)

    def blank_images(self, count: int, size: Size, device: torch.device) -> Tensor:
        """Return black images as loaded."""
        of_type = PixelType.of(self.config.dataset)
        dtype = getattr(torch, of_type.loaded)
        return torch.zeros(count, *size, of_type.channels, dtype=dtype, device=device).permute(0, 3, 1, 2)

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
        """Return the views [B, C, *eval_size] of prepared inputs that the network gets, as `image.eval_views`.

        5crop: the corners and the centre (Krizhevsky et al. 2012). scales: centred parts of `eval_size`, of
        `eval_resize` and midway, resized. shifts: the image, and itself moved by a pixel up and left, and down and
        right, with reflected edges; the moved ones count half (Jordan 2024, airbench).
        """
        kind = self.config.image.eval_views
        if kind == "centre":
            return [inputs]
        if kind == "shifts":
            padded = torch.nn.functional.pad(inputs, (1, 1, 1, 1), mode="reflect")
            return [inputs, padded[..., :-2, :-2], padded[..., 2:, 2:]]
        height, width = size = self.evaluation_size(self.config)
        if kind == "5crop":
            bottom, right = inputs.shape[2] - height, inputs.shape[3] - width
            corners = [(0, 0), (0, right), (bottom, 0), (bottom, right), (bottom // 2, right // 2)]
            return [inputs[..., top : top + height, left : left + width] for top, left in corners]
        least, loaded = min(size), min(inputs.shape[2:])
        return [_scaled(inputs, in_ratio(edge, size), size) for edge in (least, (least + loaded) // 2, loaded)]


def _mean(outputs: list[Tensor]) -> Tensor:
    return sum(outputs[1:], start=outputs[0]) / len(outputs) if len(outputs) > 1 else outputs[0]


def _scaled(images: Tensor, part: Size, size: Size) -> Tensor:
    """Return the centred parts [B, C, *part] of images [B, C, H, W], resized to [B, C, *size], antialiased."""
    top, left = ((edge - own) // 2 for edge, own in zip(images.shape[2:], part, strict=True))
    centre = images[..., top : top + part[0], left : left + part[1]]
    resize = torch.nn.functional.interpolate
    # note: bfloat16 has no antialiased resize on every device
    return centre if part == size else resize(centre.float(), size, mode="bilinear", antialias=True).to(images.dtype)
