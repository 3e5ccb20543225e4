"""What ranks tell one another: sums, flags, and values of any kind; all of them call each function together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from launcher.foreach import by_dtype

T = TypeVar("T")


def gather(value: T) -> list[T]:
    """Every rank's value, in their order."""
    if not dist.is_initialized():
        return [value]
    everyone = [value] * dist.get_world_size()
    dist.all_gather_object(everyone, value)
    return everyone


def highest(values: Tensor) -> Tensor:
    """Each of some values on the device as the highest of all ranks, in place; nothing waits for it."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(values, dist.ReduceOp.MAX)
    return values


@torch.no_grad()
def broadcast_first(tensors: Iterable[Tensor]) -> None:
    """Overwrite every rank's tensors by rank 0's, in place; one message a dtype."""
    if not (dist.is_initialized() and dist.get_world_size() > 1):
        return
    for group in by_dtype(tensors):
        message = torch.cat([tensor.flatten() for tensor in group])
        dist.broadcast(message, src=0)
        parts = message.split([tensor.numel() for tensor in group])
        torch._foreach_copy_(group, [part.view_as(tensor) for part, tensor in zip(parts, group, strict=True)])
