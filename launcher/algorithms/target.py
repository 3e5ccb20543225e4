"""A transform of images by `_target_`, such as those of torchvision.transforms.v2, as an algorithm."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic.dataclasses import dataclass

from launcher.algorithms.base import Algorithm, Transform
from launcher.compute import randomness
from launcher.compute.accelerator import interface
from launcher.config.declaration import Size
from launcher.config.fields import STRICT
from launcher.config.targets import Called
from launcher.data.batch import Batch, Moment
from launcher.errors import Problem, UserError
from launcher.later import torch

if TYPE_CHECKING:
    from torch import Tensor

# note: threads of a loader share the generators
_GENERATORS = Lock()


@dataclass(config=STRICT)
class TransformTarget(Called, Algorithm, change_image=50, change_batch=-50, acts_on=("image", "label")):
    """Calls the target at one point of the loop: for each image as loaded, [C, H, W], in a worker, or for a batch.

    The global generators, from which torchvision's transforms draw, are seeded for each image or batch by its key.

    A batch [B, C, H, W] on the device is as loaded before place 0, and normalized after it. order: the place among the
    algorithms at that point; null for the usual one.
    """

    libraries = ("torchvision.transforms",)
    leading = 1
    repeats_changes, runs_others = False, True

    at: Literal["change_image", "change_batch"]
    order: int | None

    @classmethod
    def unset(cls, name: str) -> dict[str, Any]:
        return {"at": "change_image", "order": None}

    def place(self, point: str) -> int | None:
        return None if point != self.at else self.places[point] if self.order is None else self.order

    def change_image(self, image: np.ndarray, index: int, moment: Moment) -> np.ndarray:
        pixels = torch.from_numpy(image if image.flags.writeable else image.copy()).permute(2, 0, 1)
        return self._changed(pixels, moment.epoch, index).permute(1, 2, 0).contiguous().numpy()

    def change_batch(self, batch: Batch, size: Size) -> Transform:
        return Transform((), self._change)

    def _change(self, batch: Batch) -> Batch:
        return replace(batch, inputs=self._changed(batch.inputs, batch.moment.step, batch.moment.rank))

    @cached_property
    def _transform(self) -> Any:
        return self.built()

    def _changed(self, images: Tensor, *counters: int) -> Tensor:
        key = randomness.key(self.context.plan.config.seed, self.name, *counters)
        with _GENERATORS, self.naming("fails"):
            random.seed(key)
            np.random.seed(key % 2**32)
            torch.default_generator.manual_seed(key)
            if not images.is_cpu:
                interface(images.device).manual_seed(key)
            changed = self._transform(images)
        if not isinstance(changed, torch.Tensor) or (changed.shape, changed.dtype) != (images.shape, images.dtype):
            of = f"{changed.dtype} {[*changed.shape]}" if isinstance(changed, torch.Tensor) else type(changed).__name__
            message = f"returns {of} for {images.dtype} {[*images.shape]}; it must keep type and shape"
            raise UserError(Problem(message, f"algorithms.{self.name}", self.target))
        return changed

    def __reduce__(self) -> Any:
        make, values, state = super().__reduce__()
        # note: a worker builds its own, since not all that users write can be sent
        return make, values, {name: value for name, value in state.items() if name != "_transform"}
