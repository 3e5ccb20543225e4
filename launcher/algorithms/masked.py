"""Undo the changes of a dropped step: the device decides, for many tensors at once."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from launcher.rank.peers import by_dtype

_INTEGERS = {1: torch.int8, 2: torch.int16}


class Snapshot:
    """Copies of tensors to restore, bit for bit, unless a condition on the device holds.

    torch has no `where` over many tensors in one launch. Taken as integers they have: `before + flag * (now - before)`
    is exact in them whatever the bits mean, NaN and -0.0 too.
    """

    def __init__(self, tensors: Iterable[Tensor]):
        self._groups = by_dtype(map(_as_integers, tensors))
        self._before: list[list[Tensor]] = []

    def take(self) -> None:
        """Copy the tensors."""
        self._before = [list(torch._foreach_mul(group, 1)) for group in self._groups]

    def restore_unless(self, condition: Tensor) -> None:
        """Make the tensors what they were when taken, unless the condition, boolean [], holds."""
        for group, before in zip(self._groups, self._before, strict=True):
            torch._foreach_sub_(group, before)
            torch._foreach_mul_(group, condition.to(group[0].dtype))
            torch._foreach_add_(group, before)
        self._before = []


def _as_integers(tensor: Tensor) -> Tensor:
    """The same memory; numbers of 8 bytes, such as counters, are two of 4, for one launch with those that are of 4."""
    kept = tensor.detach()
    # note: no number [] can be viewed as two
    return (kept if kept.ndim else kept[None]).view(_INTEGERS.get(kept.element_size(), torch.int32))
