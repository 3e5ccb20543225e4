"""Ghost batch norm (Hoffer et al. 2017): batch-norm statistics over small parts of the batch, in training."""

from __future__ import annotations

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
        if not self.training or len(images) <= self.ghost_size:
            return super().forward(images)
        parts = images.chunk(-(-len(images) // self.ghost_size))
        return torch.cat([super(GhostBatchNorm2d, self).forward(part) for part in parts])


class GhostBatchNorm(Algorithm[GhostBatchNormConfig]):
    """Replaces every batch norm in place; names stay."""

    def change_model(self, model: nn.Module) -> None:
        for module in model.modules():
            if type(module) is nn.BatchNorm2d:
                module.__class__ = GhostBatchNorm2d
                assert isinstance(module, GhostBatchNorm2d)
                module.ghost_size = self.values.ghost_batch_size
