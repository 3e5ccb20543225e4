"""Many tensors at once, in few kernel launches: torch's foreach functions take tensors of one dtype."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

_INTEGERS = {1: torch.int8, 2: torch.int16}


def by_dtype(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Tensors in groups of one dtype, in the order of the first."""
    groups: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.dtype, []).append(tensor)
    return list(groups.values())


def gradients_of(weights: Iterable[Tensor]) -> list[Tensor]:
    """All gradients that there are."""
    return [one.grad for one in weights if one.grad is not None]


class Snapshot:
    """A copy of tensors, which a skipped step puts back where a condition on the device does not hold, bit for bit.

    torch has no `where` over many tensors in one launch. Taken as integers they have: `before + flag * (now - before)`
    is exact in them whatever the bits mean, NaN and -0.0 too.
    """

    def __init__(self, tensors: Iterable[Tensor]):
        self._groups = by_dtype(map(_as_integers, tensors))
        self._before: list[list[Tensor]] = []

    def take(self) -> None:
        """Copy the tensors as they are."""
        self._before = [list(torch._foreach_mul(group, 1)) for group in self._groups]

    def restore_unless(self, condition: Tensor) -> None:
        """Put the copies back unless the condition, boolean [], holds."""
        for group, before in zip(self._groups, self._before, strict=True):
            torch._foreach_sub_(group, before)
            torch._foreach_mul_(group, condition.to(group[0].dtype))
            torch._foreach_add_(group, before)
        self._before = []


def _as_integers(tensor: Tensor) -> Tensor:
    """The same memory; numbers of 8 bytes, such as counters, are two of 4, for one launch with those that are of 4."""
    values = tensor.detach()
    # note: no number [] can be viewed as two
    return (values if values.ndim else values[None]).view(_INTEGERS.get(values.element_size(), torch.int32))
