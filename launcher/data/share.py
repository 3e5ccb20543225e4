"""What all loaders of a rank are given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

ChangeOrder = Callable[[np.ndarray, int], np.ndarray]


@dataclass(frozen=True)
class Share:
    """Whose batches these are, and where they go."""

    rank: int
    world_size: int
    workers: int
    prefetch: int
    device: torch.device
