"""Ghost batch norm (Hoffer et al. 2017): batch-norm statistics over small parts of the batch, in training."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from launcher.algorithms.base import Algorithm
from launcher.config.algorithms import GhostBatchNormConfig


@cache
def ghost_class(kind: Any) -> type[nn.BatchNorm2d]:
    """A batch norm, also one with its activation, that normalises [B, C, H, W] in ceil(B / ghost_size) parts.

    They are as equal as `chunk` makes them. The running statistics move once a part, as in the paper's algorithm 1;
    evaluation is plain.
    """

    def forward(self: Any, images: Tensor) -> Tensor:
        if not self.training or len(images) <= self.ghost_size:
            return kind.forward(self, images)  # type: ignore[no-any-return]
        return torch.cat([kind.forward(self, part) for part in images.chunk(-(-len(images) // self.ghost_size))])

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
