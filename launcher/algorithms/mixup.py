"""MixUp (Zhang et al. 2018): each picture and its target blended with another of the batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import Tensor

from launcher.algorithms.base import Algorithm, Transform
from launcher.algorithms.mixing import draws_of, is_chosen, mix_targets
from launcher.config.batch_algorithms import MixUpConfig
from launcher.config.declaration import Size
from launcher.data.batch import Batch


def mix_images(images: Tensor, order: Tensor, weight: Tensor) -> Tensor:
    """`(1 - weight) * images + weight * images[order]` of floating-point [B, C, H, W] and []; order: int64 [B]."""
    return images.lerp(images[order], weight)


class MixUp(Algorithm[MixUpConfig]):
    """One weight min(z, 1 - z), z ~ Beta(alpha, alpha), and one permutation for a process's batch."""

    def change_batch(self, batch: Batch, size: Size) -> Transform | None:
        if not is_chosen("mixup", self.context.plan.config.algorithms, batch.moment):
            return None
        draws = draws_of("mixup", batch.moment)
        z = draws.beta(self.values.alpha, self.values.alpha)
        weight = np.array(min(z, 1 - z), dtype=np.float32)

        def mix(batch: Batch, order: Tensor, weight: Tensor) -> Batch:
            # note: in the pictures' own format, and for the targets the same number
            weight = weight.to(batch.images.dtype)
            return replace(
                batch,
                images=mix_images(batch.images, order, weight),
                targets=mix_targets(batch.targets, order, weight.float(), self.context.classes, self.values.smoothed),
            )

        return Transform([draws.permutation(len(batch.images)), weight], mix)
