"""What a single algorithm makes of a batch."""

from __future__ import annotations

from typing import Any

from launcher.algorithms.engine import apply_in_turn, on_device
from launcher.data.batch import Batch


def transformed(algorithm: Any, batch: Batch) -> Batch:
    """The batch after the algorithm's transform; the same object where it has none for this batch."""
    height, width = batch.images.shape[-2:]
    transform = algorithm.change_batch(batch, (height, width))
    return apply_in_turn(on_device([transform], batch.images.device), batch) if transform else batch
