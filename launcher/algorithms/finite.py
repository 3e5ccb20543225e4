"""Gradients and their size: whether a step may be used for anything."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def gradients_of(model: nn.Module) -> list[Tensor]:
    """All gradients that there are."""
    return [p.grad for p in model.parameters() if p.grad is not None]


def global_norm(tensors: list[Tensor]) -> Tensor:
    """The 2-norm [] of all tensors taken as one vector."""
    norm: Tensor = torch.stack(torch._foreach_norm(tensors)).norm()
    return norm
