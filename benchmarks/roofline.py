"""The least time that kernels take on a GPU, and what an exchange of gradients adds to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from lab.predict.fusion import Kernel
from lab.predict.machines import Gpu
from lab.predict.meta_tensors import nothing_computed
from lab.predict.trace import Gradient, Trace

# DDP's own sizes: the first bucket is small, so that the exchange begins early.
_FIRST_BUCKET = 1024**2
_BUCKET = 25 * 1024**2
_FLOAT32 = 4


def least_seconds(kernels: Sequence[Kernel], gpu: Gpu) -> float:
    """Kernel after kernel, each as long as its bytes or its matrix operations take, whichever is longer."""
    return sum(_seconds(kernel, gpu) for kernel in kernels)


def _seconds(kernel: Kernel, gpu: Gpu) -> float:
    return max(kernel.moved / gpu.bandwidth / 1e9, kernel.operations / gpu.matrix_rate / 1e12)


@dataclass(frozen=True)
class Exchange:
    """An all-reduce of all gradients: bytes that a GPU sends, its seconds, and those after the backward pass."""

    sent: float
    seconds: float
    exposed: float

    def scaling(self, step_seconds: float, gpus: int) -> float:
        """Times the rate of one GPU."""
        return gpus * step_seconds / (step_seconds + self.exposed)


def exchange(
    kernels: Sequence[Kernel], gradients: Sequence[Gradient], gpu: Gpu, gpus: int, element_size: int = 4
) -> Exchange:
    """The gradients' way around a ring of GPUs, bucket by bucket as they become ready in the backward pass.

    A bucket of b bytes has each of n GPUs send 2 (n - 1) / n b. It goes when it is full and the one before has gone.
    What the exchange takes from the kernels beside it, and what a message costs to begin, are left out.
    """
    ends, clock, backward = [], 0.0, 0.0
    for kernel in sorted(kernels, key=lambda kernel: kernel.last_call):
        clock += _seconds(kernel, gpu)
        ends.append((kernel.last_call, clock))
        backward = clock if kernel.phase == "network" else backward
    gone = sent = 0.0
    for size, calls in _buckets(gradients, element_size):
        ready = max((end for last_call, end in ends if last_call < calls), default=0.0)
        share = 2 * (gpus - 1) / gpus * size
        gone = max(gone, ready) + share / gpu.link / 1e9
        sent += share
    return Exchange(sent, sent / gpu.link / 1e9, max(0.0, gone - backward))


def _buckets(gradients: Sequence[Gradient], element_size: int) -> list[tuple[int, int]]:
    """Bytes of each bucket, and how many calls there were when its last gradient was ready."""
    buckets: list[tuple[int, int]] = []
    held, limit = 0, _FIRST_BUCKET
    for number, gradient in enumerate(gradients, 1):
        held += _FLOAT32 * gradient.elements
        if held >= limit or number == len(gradients):
            # note: DDP fills buckets with gradients as they are, and its hook makes them smaller
            buckets.append((held * element_size // _FLOAT32, gradient.calls))
            held, limit = 0, _BUCKET
    return buckets


def traced(step: Callable[[], object], network: nn.Module) -> Trace:
    """The second step of a network, since the first one makes the optimizer's state."""
    with nothing_computed():
        with Trace():
            step()
        trace = Trace()
        end = trace.watch(network)
        with trace:
            step()
        end()
    return trace
