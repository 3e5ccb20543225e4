"""The minimum time of kernels on a GPU, and the time that a gradient all-reduce adds to it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from launcher.config.gpus import Gpu
from launcher_lab.predict.fusion import Kernel
from launcher_lab.predict.meta_tensors import nothing_computed
from launcher_lab.predict.trace import Gradient, Trace

# DDP's bucket sizes; the first is small, so that the all-reduce starts early.
_FIRST_BUCKET = 1024**2
_BUCKET = 25 * 1024**2
_FLOAT32 = 4


def minimum_seconds(kernels: Sequence[Kernel], gpu: Gpu) -> float:
    """Sum the times of the kernels, each bound by its bytes or its matrix operations, whichever takes longer."""
    return sum(_seconds(kernel, gpu) for kernel in kernels)


def _seconds(kernel: Kernel, gpu: Gpu) -> float:
    return max(kernel.moved / gpu.bandwidth / 1e9, kernel.operations / gpu.matrix_rate / 1e12)


@dataclass(frozen=True)
class AllReduce:
    """An all-reduce of all gradients: bytes sent per GPU, seconds in total, and seconds after the backward pass."""

    sent: float
    seconds: float
    exposed: float

    def scaling(self, step_seconds: float, gpus: int) -> float:
        """Return the throughput as a multiple of one GPU's."""
        return gpus * step_seconds / (step_seconds + self.exposed)


def all_reduce(
    kernels: Sequence[Kernel], gradients: Sequence[Gradient], gpu: Gpu, gpus: int, element_size: int = 4
) -> AllReduce:
    """Return the time of a ring all-reduce, bucket by bucket during the backward pass.

    For a bucket of b bytes each of n GPUs sends 2 (n - 1) / n b bytes, once the bucket is full and the previous one
    sent. The model ignores message latency and the interference of the all-reduce with other kernels.
    """
    ends, clock, backward = [], 0.0, 0.0
    for kernel in sorted(kernels, key=lambda kernel: kernel.last_call):
        clock += _seconds(kernel, gpu)
        ends.append((kernel.last_call, clock))
        backward = clock if kernel.phase == "network" else backward
    done = sent = 0.0
    for size, calls in _buckets(gradients, element_size):
        ready = max((end for last_call, end in ends if last_call < calls), default=0.0)
        moved = 2 * (gpus - 1) / gpus * size
        done = max(done, ready) + moved / gpu.link / 1e9
        sent += moved
    return AllReduce(sent, sent / gpu.link / 1e9, max(0.0, done - backward))


def _buckets(gradients: Sequence[Gradient], element_size: int) -> list[tuple[int, int]]:
    """Return each bucket's bytes, and the number of calls before its last gradient was ready."""
    buckets: list[tuple[int, int]] = []
    held, limit = 0, _FIRST_BUCKET
    for number, gradient in enumerate(gradients, 1):
        held += _FLOAT32 * gradient.elements
        if held >= limit or number == len(gradients):
            # note: DDP fills buckets with float32 gradients, and its hook then compresses them
            buckets.append((held * element_size // _FLOAT32, gradient.calls))
            held, limit = 0, _BUCKET
    return buckets


def traced(step: Callable[[], object], network: nn.Module) -> Trace:
    """Trace the second step of a network, since the first one creates the optimizer's state."""
    with nothing_computed():
        with Trace():
            step()
        trace = Trace()
        end = trace.watch(network)
        with trace:
            step()
        end()
    return trace
