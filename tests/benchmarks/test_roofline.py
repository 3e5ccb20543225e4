from __future__ import annotations

import pytest

from benchmarks.roofline import exchange, least_seconds
from lab.predict.fusion import Kernel
from lab.predict.machines import Gpu, gpus
from lab.predict.trace import Gradient

# 1 GB/s of memory, 1 TFLOP/s, 1 GB/s to each other
GPU = Gpu(memory=1, bandwidth=1, matrix_rate=1, product_rate=1, link=1, source="")
MB = 10**6


def kernel(megabytes: int, gigaoperations: int, last_call: int, phase: str = "network") -> Kernel:
    return Kernel("elementwise", phase, megabytes * MB, gigaoperations * 10**9, last_call)


def test_each_kernel_takes_as_long_as_the_slower_of_its_two() -> None:
    assert least_seconds([kernel(10, 2, 0), kernel(3, 20, 1)], GPU) == pytest.approx(0.010 + 0.020)


def test_a_ring_sends_each_byte_nearly_twice() -> None:
    one = exchange([kernel(1, 0, 0)], [Gradient(25 * MB, 1)], GPU, 8)
    assert one.sent == pytest.approx(2 * 7 / 8 * 100 * MB)
    assert one.seconds == pytest.approx(0.175)
    assert exchange([kernel(1, 0, 0)], [Gradient(25 * MB, 1)], GPU, 8, element_size=2).sent == one.sent / 2
    assert exchange([kernel(1, 0, 0)], [Gradient(25 * MB, 1)], GPU, 1).sent == 0


def test_buckets_go_while_the_backward_pass_runs() -> None:
    # note: two buckets of 30 MB, ready after 10 and 110 ms; each needs 30 ms between two GPUs
    gradients = [Gradient(7_500_000, 1), Gradient(7_500_000, 2)]
    kernels = [kernel(10, 0, 0), kernel(100, 0, 1), kernel(5, 0, 2, phase="update")]
    assert exchange(kernels, gradients, GPU, 2).exposed == pytest.approx(0.030)
    # note: both ready at the end alone, none is hidden
    assert exchange(kernels[1:], [Gradient(7_500_000, 2)] * 2, GPU, 2).exposed == pytest.approx(0.060)


def test_smaller_gradients_go_in_the_same_buckets() -> None:
    # note: of 4, 28 and 28 MB, the last ready at the end
    gradients = [Gradient(1_000_000, 1), Gradient(7_000_000, 2), Gradient(7_000_000, 3)]
    kernels = [kernel(100, 0, number) for number in range(3)]
    assert exchange(kernels, gradients, GPU, 2).exposed == pytest.approx(0.028)
    assert exchange(kernels, gradients, GPU, 2, element_size=2).exposed == pytest.approx(0.014)


def test_every_gpu_has_a_link() -> None:
    assert all(gpu.link < gpu.bandwidth for gpu in gpus().values())
