"""Average gradients over all ranks in buckets, each during the backward pass as soon as it is complete."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from launcher.compute.foreach import gradients_of
from launcher.rank.group import Ranks, broadcast_first

# Of the first bucket, which is small so that the all-reduce starts early, and of the others: DDP's values.
BUCKET_BYTES = 1 << 20, 25 << 20


class _Bucket:
    """Parameters, and memory for their gradients: as the all-reduce sends them, and the means in float32."""

    def __init__(self, parameters: Sequence[nn.Parameter], ranks: Ranks, dtype: torch.dtype):
        self.parameters, self._ranks = parameters, ranks.world_size
        size = sum(parameter.numel() for parameter in parameters)
        self._sent = torch.zeros(size, dtype=dtype, device=ranks.device)
        self._means = self._sent if dtype == torch.float32 else torch.zeros_like(self._sent, dtype=torch.float32)
        self._sent_parts, self._mean_parts = self._parts(self._sent), self._parts(self._means)

    def _parts(self, buffer: Tensor) -> list[Tensor]:
        # note: in the memory order of the weights, as fused optimizers need
        parts = buffer.split([parameter.numel() for parameter in self.parameters])
        return [
            part.as_strided(parameter.shape, parameter.stride())
            for part, parameter in zip(parts, self.parameters, strict=True)
        ]

    def fill(self) -> None:
        """Copy this rank's part of the means; that of a parameter without a gradient is 0."""
        pairs = [*zip(self._sent_parts, self.parameters, strict=True)]
        if gradients := gradients_of(self.parameters):
            torch._foreach_copy_([part for part, parameter in pairs if parameter.grad is not None], gradients)
        if absent := [part for part, parameter in pairs if parameter.grad is None]:
            torch._foreach_zero_(absent)
        self._sent.div_(self._ranks)
        for parameter in self.parameters:
            parameter.grad = None  # note: frees its memory

    def all_reduce(self) -> dist.Work:
        """Start the all-reduce."""
        work = dist.all_reduce(self._sent, async_op=True)
        assert work is not None
        return work

    def set_gradients(self) -> None:
        """Make the gradients the means."""
        # note: a copy only in another format
        if self._means is not self._sent:
            self._means.copy_(self._sent)
        for parameter, part in zip(self.parameters, self._mean_parts, strict=True):
            parameter.grad = part


class GradientBuckets:
    """Averages gradients over all ranks, by hooks that CUDA graphs can have, unlike those of DDP.

    The last parameters, whose gradients are complete first, are in the first bucket. The buckets have fixed addresses
    and are sent in a fixed order, also if parameters have no gradient, so all ranks always launch the same collectives,
    and a resumed run sums in the order of an uninterrupted one. All ranks start with the weights and buffers of rank 0.
    Batch-norm statistics stay local in training; evaluations and checkpoints use those of rank 0. gradient_dtype:
    `float32`, or `bfloat16` with half the bytes: with N ranks the error of each mean is then at most (N + 1) / 256 of
    the mean magnitude.
    """

    def __init__(self, model: nn.Module, ranks: Ranks, gradient_dtype: str = "float32"):
        broadcast_first([*model.parameters(), *model.buffers()])
        self._model, self._ranks, self._dtype = model, ranks, getattr(torch, gradient_dtype)
        self._parameters: list[nn.Parameter] = []
        self._buckets: list[_Bucket] = []
        self._hooks: list[RemovableHandle] = []
        # Per bucket, how many gradients are not complete; empty outside of a backward pass that averages.
        self._missing: list[int] = []
        self._works: list[dist.Work] = []
        self._group()

    def _group(self) -> None:
        """Group the parameters that learn now."""
        learning = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        if [*map(id, learning)] == [*map(id, self._parameters)]:
            return
        self._parameters = learning
        for hook in self._hooks:
            hook.remove()
        groups = in_buckets(learning)
        self._buckets = [_Bucket(group, self._ranks, self._dtype) for group in groups]
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._complete, number))
            for number, group in enumerate(groups)
            for parameter in group
        ]

    @contextmanager
    def averaging(self) -> Iterator[None]:
        """Make the gradients that the backward pass inside completes the means of all ranks."""
        self._group()
        self._missing, self._works = [len(bucket.parameters) for bucket in self._buckets], []
        try:
            yield
        finally:
            self._missing = []
        for bucket in self._buckets[len(self._works) :]:
            bucket.fill()
            self._works.append(bucket.all_reduce())
        for work in self._works:
            work.wait()
        for bucket in self._buckets:
            bucket.set_gradients()

    def _complete(self, number: int, _: Tensor) -> None:
        if not self._missing:
            return
        self._missing[number] -= 1
        for bucket, missing in [*zip(self._buckets, self._missing, strict=True)][len(self._works) :]:
            if missing:
                break
            bucket.fill()
            self._works.append(bucket.all_reduce())


def in_buckets(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Group parameters from last to first; each bucket ends with the parameter that fills it."""
    buckets: list[list[nn.Parameter]] = [[]]
    size, (most, others) = 0, BUCKET_BYTES
    for parameter in reversed(parameters):
        if size >= most:
            buckets.append([])
            size, most = 0, others
        buckets[-1].append(parameter)
        size += parameter.nbytes
    return buckets
