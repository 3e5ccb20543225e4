"""Operate on many tensors in few kernel launches: torch's foreach functions take tensors of one dtype."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

_INTEGERS = {1: torch.int8, 2: torch.int16}


def by_dtype(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Group tensors by dtype, in the order of the first tensor of each."""
    groups: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.dtype, []).append(tensor)
    return list(groups.values())


def gradients_of(weights: Iterable[Tensor]) -> list[Tensor]:
    """Return the gradients that are not None."""
    return [weight.grad for weight in weights if weight.grad is not None]


class _Cast(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        context.set_materialize_grads(False)
        context.dtype = tensors[0].dtype
        return tuple(_copies(tensors, dtype))

    @staticmethod
    def backward(context: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        copies = iter(_copies([one for one in gradients if one is not None], context.dtype))
        return None, *(None if one is None else next(copies) for one in gradients)


def cast(tensors: Sequence[Tensor], dtype: torch.dtype) -> Sequence[Tensor]:
    """Cast tensors of one dtype, and in the backward pass their gradients back, both in few launches."""
    return _Cast.apply(dtype, *tensors) if tensors else []


def _copies(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    torch._foreach_copy_(copies, list(tensors))
    return copies


class Snapshot:
    """A copy of tensors that a skipped step restores bit for bit if a condition on the device is false.

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
    return (values if values.ndim else values[None]).view(_INTEGERS.get(values.element_size(), torch.int32))
