"""Whether numbers are finite, on every rank: what a step may be used for."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn


def gradients_of(model: nn.Module) -> list[Tensor]:
    """All gradients that there are."""
    return [p.grad for p in model.parameters() if p.grad is not None]


def global_norm(tensors: list[Tensor]) -> Tensor:
    """The 2-norm [] of all tensors taken as one vector."""
    norm: Tensor = torch.stack(torch._foreach_norm(tensors)).norm()
    return norm


def everywhere(condition: Tensor) -> bool:
    """Whether a boolean [] on the device holds on every rank; waits for the device."""
    flag = condition.to(torch.int32)
    if dist.is_initialized():
        dist.all_reduce(flag, dist.ReduceOp.MIN)
    return bool(flag.item())
