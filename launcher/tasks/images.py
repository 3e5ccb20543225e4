"""What all tasks of images have in common: uint8 images as inputs, which the device normalizes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from launcher.data.batch import Batch, normalize
from launcher.tasks import Task

if TYPE_CHECKING:
    from torch import Tensor, nn


class ImageTask(Task):
    """Has inputs uint8 [B, 3, H, W], which the network gets normalized by the data set's mean and deviation."""

    def prepare(self, batch: Batch) -> Batch:
        dataset = self.config.dataset
        return replace(batch, inputs=normalize(batch.inputs, dataset.mean, dataset.std, self.dtype))

    def forward(self, model: nn.Module, inputs: Tensor) -> Tensor:
        """Return the outputs, averaged with those of the mirrored images if the run evaluates so."""
        outputs = super().forward(model, inputs)
        if not self.config.image.eval_flip_average:
            return outputs
        return (outputs + super().forward(model, inputs.flip(3))) / 2
