"""Operate on many tensors in few kernel launches: torch's foreach functions take tensors of one dtype."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from launcher.later import torch

if TYPE_CHECKING:
    from torch import Tensor


def by_dtype(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Group tensors by dtype, in the order of the first tensor of each."""
    groups: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.dtype, []).append(tensor)
    return list(groups.values())


def gradients_of(weights: Iterable[Tensor]) -> list[Tensor]:
    """Return the gradients that are not None."""
    return [weight.grad for weight in weights if weight.grad is not None]


class Snapshot:
    """A copy of tensors that a dropped step restores bit for bit if a condition on the device is false.

    torch has no `where` over many tensors in one launch. On their bits as integers, `before + flag * (now - before)`
    is exact, also for NaN and -0.0.
    """

    def __init__(self, tensors: Iterable[Tensor]):
        self._groups = by_dtype(map(_as_integers, tensors))
        self._before: list[list[Tensor]] = []

    def take(self) -> None:
        """Copy the current tensors."""
        self._before = [list(torch._foreach_mul(group, 1)) for group in self._groups]

    def restore_unless(self, condition: Tensor) -> None:
        """Restore the copies unless the condition, boolean [], is true."""
        for group, before in zip(self._groups, self._before, strict=True):
            torch._foreach_sub_(group, before)
            torch._foreach_mul_(group, condition.to(group[0].dtype))
            torch._foreach_add_(group, before)
        self._before = []


def _as_integers(tensor: Tensor) -> Tensor:
    """View the memory as integers; values of 8 bytes become two of 4 bytes, for one launch with the others."""
    values = tensor.detach()
    # note: torch cannot view a tensor of shape [] as two values
    integers = {1: torch.int8, 2: torch.int16}
    return (values if values.ndim else values[None]).view(integers.get(values.element_size(), torch.int32))
