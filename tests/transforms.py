"""Apply a single algorithm, or a single image operation, to a batch."""

from typing import Any

import numpy as np
from torch import Tensor

from launcher.algorithms.image_operations import BLACK, Choice, Colour, apply
from launcher.data.batch import Batch, to_device


def transformed(algorithm: Any, batch: Batch) -> Batch:
    """Return the batch after the transform of an algorithm, or the same object if it has none for this batch."""
    height, width = batch.inputs.shape[-2:]
    transform = algorithm.change_batch(batch, (height, width))
    if transform is None:
        return batch
    return transform.apply(batch, *to_device(*transform.arrays, device=batch.inputs.device))


def operate(name: str, images: Tensor, magnitudes: Tensor, fill: Colour = BLACK) -> Tensor:
    """Apply one operation to all uint8 images [B, 3, H, W], with magnitudes [B]."""
    choice = Choice(np.zeros(len(images), dtype=np.int64), magnitudes.cpu().numpy())
    height, width = images.shape[2:]
    arrays = choice.arrays([name], height, width, fixed=images.device.type != "cpu")
    return apply(images, to_device(*arrays, device=images.device), fill)
