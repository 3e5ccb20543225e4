"""What a loader yields and what the algorithms change."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


@dataclass(frozen=True)
class Moment:
    """Where training stands: counters are zero-based, `step` counts optimizer steps of the whole run."""

    seed: int
    epoch: int
    step: int
    total_steps: int
    rank: int = 0

    @property
    def progress(self) -> float:
        """Part of the run that is done, in [0, 1]."""
        return self.step / self.total_steps


@dataclass(frozen=True)
class Batch:
    """One process's share of a global batch.

    images: [B, 3, H, W]; uint8 as loaded, floating point once normalised.
    targets: int64 class indices [B], or floating-point class weights [B, classes].
    indices: int64 sample numbers [B] in the data set (NumPy, on the CPU), the key of per-image randomness.
    """

    images: Tensor
    targets: Tensor
    indices: np.ndarray
    moment: Moment

    def having(self, **changes: Any) -> Batch:
        """The same batch with some fields replaced."""
        return replace(self, **changes)
