"""Semantic segmentation: each pixel of an image has one class; mean IoU, Dice and pixel accuracy."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from launcher.config.declaration import RunPlan, Size
from launcher.config.fields import STRICT
from launcher.config.goals import Metric
from launcher.data.masks.values import IGNORED, MOST_CLASSES
from launcher.errors import Problem, UserError, first_few
from launcher.later import torch
from launcher.tasks import Details
from launcher.tasks.images import ImageTask
from launcher.tasks.presenters import MASKS, TOP, ImagePresenter, PredictedImage, PredictingModel

if TYPE_CHECKING:
    from argparse import Namespace

    from torch import Tensor

    from launcher.config.schema import RunConfig
    from launcher.data.images import ChangeImage
    from launcher.data.index import Images
    from launcher.data.records import Decoder, Records

_COLOUR = re.compile(r"#[0-9a-fA-F]{6}")
_Colour = Annotated[str, Field(pattern=rf"^{_COLOUR.pattern}$")]
# The value of a class in masks, up to 65,535 since predicted masks are PNGs, or a colour as #rrggbb.
Value = Annotated[int, Field(ge=0, le=65535)] | _Colour


def _number(value: int | str) -> int:
    """Return a value of a mask as a number: that of a colour is its six digits."""
    return value if isinstance(value, int) else int(value[1:], 16)


class MaskPresenter(ImagePresenter):
    """Writes also a mask of each image, into the folder `--masks`."""

    def __init__(self, arguments: Namespace, config: RunConfig):
        super().__init__(arguments, config)
        self.folder = Path(arguments.masks or MASKS)
        self.masks = masks = [self.folder / f"{Path(file).stem}.png" for file in self.files]
        if len({*masks}) < len(masks):
            twice = next(mask for number, mask in enumerate(masks) if mask in masks[:number])
            message = f"two images have masks {twice.name}; predict them into different folders"
            raise UserError(Problem(message, "--masks", self.folder))
        # note: they may be the images, or masks that were drawn by hand
        if present := [str(mask) for mask in masks if os.path.lexists(mask)]:
            message = f"would overwrite {first_few(present, 1)}; set another folder"
            raise UserError(Problem(message, "--masks", self.folder))

    def predictions(self, model: PredictingModel) -> Iterable[PredictedImage]:
        from launcher.tasks.predicted_masks import write_masks  # note: torch

        return write_masks(model, self.files, self.masks, self.arguments.top or TOP)

    def present(self, model: PredictingModel) -> int:
        code = super().present(model)
        print(f"masks are in {self.arguments.masks or MASKS}", file=sys.stderr)
        return code


@dataclass(config=STRICT)
class Segmentation(ImageTask):
    """Outputs are scores [B, classes, H, W], targets class indices int64 [B, H, W], IGNORED for pixels of none.

    A class of each pixel; `classes` names the values 0, 1 ..., or other values or colours, `ignore` is that of none.

    IoU and Dice of a class are of all pixels of the images together, as evaluated, in their centre crops; mean IoU is
    the mean over classes that images or predictions have, Dice also without the first class, the background.
    """

    metrics = (
        Metric("miou", "mean IoU", about="mean over classes of their IoU"),
        Metric("dice", "Dice", about="mean over classes without the first, the background"),
        Metric("pixel_accuracy", "pixel accuracy", about="pixels whose class is right"),
        Metric("dice_with_background", "Dice with background", in_line="never", about="mean over all classes"),
    )
    needs = ("image", "mask")
    labelled = "pixels"
    predicted = ("class", "share")
    flags = (*ImageTask.flags, "masks")
    presenter = MaskPresenter

    name: Literal["segmentation"]
    classes: Annotated[list[str], Field(min_length=2)] | Annotated[dict[str, Value], Field(min_length=2)] | None
    ignore: Annotated[int, Field(ge=0)] | _Colour | None

    def loaded_evaluation_size(self, config: RunConfig) -> Size:
        # note: outputs of other crops belong to other pixels
        return self.evaluation_size(config)

    def decoder(self, config: RunConfig, change_image: ChangeImage | None) -> Decoder:
        from launcher.data.masks.decoder import RandomPairs  # note: torch

        return RandomPairs(config)

    def evaluation_decoder(self, config: RunConfig) -> Decoder:
        from launcher.data.masks.decoder import CentrePairs  # note: torch

        return CentrePairs(config)

    def records(self, folder: Images, decoder: Decoder) -> Records:
        from launcher.data.masks.decoder import MaskRecords  # note: torch

        return MaskRecords(folder, decoder)

    def scores(self, loss: object) -> Literal["softmax"]:
        return "softmax"

    @property
    def is_coloured(self) -> bool:
        """Whether the classes are colours."""
        return isinstance(self.classes, dict) and any(isinstance(value, str) for value in self.classes.values())

    def values(self) -> list[int] | None:
        """Return the number of each class in masks; None if these are 0, 1 ..., as many as they have."""
        if isinstance(self.classes, dict):
            return [_number(value) for value in self.classes.values()]
        return None if self.classes is None else [*range(len(self.classes))]

    @property
    def ignored_value(self) -> int | None:
        """The number in masks of pixels that do not count."""
        # note: 255 is no colour, and does no harm where classes are
        return None if self.ignore is None else _number(self.ignore)

    def names_of(self, train: Sequence[int], val: Sequence[int], classes: int | None) -> list[str]:
        """Return the names of the classes, given the pixels of each index in the masks and their number, if it is set.

        Raises UserError if the masks have fewer than two classes, or values above the last class, or lack one below it.
        """
        if self.classes is not None:
            return [*self.classes]
        present = [number for number in range(MOST_CLASSES) if train[number] or val[number]]
        last = max(present, default=0)
        if (count := classes or last + 1) < 2:
            has = f"0 and {self.ignore}, which is ignored" if train[IGNORED] else "0"
            message = f"masks have only the values {has}; set task.classes={{background:0,object:255}} for masks of "
            raise UserError(Problem(f"{message}0 and 255", "task.classes", None))
        # note: a stray value would be a class, and so would all values below it
        if last >= count or (classes is None and len(present) < count):
            has = f"masks have the values {first_few([*map(str, present)], 9)}; if {last} is the last class, set "
            message = f"{has}dataset.classes={last + 1}, else name the values in task.classes, or repair the masks"
            raise UserError(Problem(message, "dataset.classes", classes))
        return [str(number) for number in range(count)]

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        if isinstance(self.classes, dict):
            if len({isinstance(value, str) for value in self.classes.values()}) > 1:
                yield Problem("has both numbers and colours; set one of them for all", "task.classes", self.classes)
            elif len({_number(value) for value in self.classes.values()}) < len(self.classes):
                yield Problem("has one value for two classes; set different ones", "task.classes", self.classes)
        if len(self.classes or ()) > MOST_CLASSES:
            yield Problem(f"has more classes than {MOST_CLASSES}; join some", "task.classes", len(self.classes or ()))

    def targets(self, labels: Tensor) -> Tensor:
        return labels.long()

    def states(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Count the pixels by true and predicted class, int64 [classes, classes]."""
        from launcher.tasks.pixels import confusion  # note: it has the loaders, which a step does not need

        return {"pixels": confusion(outputs, targets)}

    def evaluated(self, states: Mapping[str, Tensor], samples: int) -> dict[str, float]:
        pixels = states["pixels"].double()
        hits, either = pixels.diagonal(), pixels.sum(0) + pixels.sum(1)
        known = either > 0
        iou, dice = (hits / (either - hits))[known], 2 * hits / either
        objects = dice[1:][known[1:]]
        return {
            "miou": iou.mean().item(),
            "dice": objects.mean().item(),
            "pixel_accuracy": (hits.sum() / pixels.sum()).item(),
            "dice_with_background": dice[known].mean().item(),
        }

    def blank(self, count: int, size: Size, device: torch.device) -> tuple[Tensor, Tensor]:
        images = self.blank_images(count, size, device)
        return images, torch.zeros(count, *size, dtype=torch.uint8, device=device)

    def output_shape(self, count: int, size: Size) -> tuple[int, ...]:
        return count, self.outputs(self.config.dataset), *size

    def passes(self, inputs: Tensor) -> list[Tensor]:
        # note: outputs of other views belong to other pixels
        return [inputs, inputs.flip(3)] if self.config.image.eval_flip_average else [inputs]

    def average(self, outputs: list[Tensor]) -> Tensor:
        return (outputs[0] + outputs[1].flip(3)) / 2 if len(outputs) > 1 else outputs[0]

    def details(self, names: Sequence[str], *, with_images: bool) -> Details:
        from launcher.tasks.pixels import PixelConfusion  # note: it has the loaders, which a step does not need

        return PixelConfusion(self, names, with_images=with_images)

    def predictions(self, outputs: Tensor, names: Sequence[str], top: int) -> list[list[tuple[str, float]]]:
        """Return the classes with most pixels of each image, with their share of all pixels."""
        shares = torch.stack([(outputs.argmax(1) == number).float().mean((1, 2)) for number in range(len(names))], 1)
        best = shares.sort(stable=True, dim=1, descending=True)
        rows = zip(best.indices[:, :top].tolist(), best.values[:, :top].tolist(), strict=True)
        return [[(names[n], share) for n, share in zip(*row, strict=True) if share] for row in rows]
