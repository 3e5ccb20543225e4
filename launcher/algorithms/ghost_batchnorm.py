"""Ghost batch norm (Hoffer et al. 2017): batch-norm statistics over small parts of the batch, in training."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from launcher.algorithms.base import Algorithm
from launcher.config.algorithms import GhostBatchNormConfig


class GhostBatchNorm2d(nn.BatchNorm2d):
    """Normalises [B, C, H, W] in ceil(B / ghost_size) parts, as equal as `chunk` makes them.

    The running statistics move once a part, as in the paper's algorithm 1; evaluation is plain batch norm.
    """

    ghost_size: int

    def forward(self, images: Tensor) -> Tensor:
        return in_parts(super().forward, self, images)


def in_parts(forward: Callable[[Tensor], Tensor], layer: Any, images: Tensor) -> Tensor:
    """What a batch norm's `forward` makes of its ghost batches [B, C, H, W]."""
    if not layer.training or len(images) <= layer.ghost_size:
        return forward(images)
    return torch.cat([forward(part) for part in images.chunk(-(-len(images) // layer.ghost_size))])


@cache
def ghost_class(kind: Any) -> type[nn.BatchNorm2d]:
    """A library's own batch norm, such as one with its activation, in parts."""
    if kind is nn.BatchNorm2d:
        return GhostBatchNorm2d

    def forward(self: Any, images: Tensor) -> Tensor:
        return in_parts(partial(kind.forward, self), self, images)

    return type(f"Ghost{kind.__name__}", (kind,), {"forward": forward})


class GhostBatchNorm(Algorithm[GhostBatchNormConfig]):
    """Replaces every batch norm in place; names stay."""

    needs = "batch norm"

    def change_model(self, model: nn.Module) -> None:
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                kind: Any = type(module)
                module.__class__ = ghost_class(kind)
                module.ghost_size = self.values.ghost_batch_size  # type: ignore[assignment]
