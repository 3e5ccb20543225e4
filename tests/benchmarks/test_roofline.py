import pytest

from benchmarks.roofline import all_reduce, minimum_seconds
from launcher.config.gpus import Gpu, gpus
from launcher_lab.predict.fusion import Kernel
from launcher_lab.predict.trace import Gradient

# 1 GB/s of memory bandwidth, 1 TFLOP/s, 1 GB/s between GPUs
GPU = Gpu(memory=1, bandwidth=1, matrix_rate=1, product_rate=1, vector_rate=0.5, link=1, source="")
MB = 10**6


def kernel(megabytes: int, gigaoperations: int, last_call: int, phase: str = "network") -> Kernel:
    return Kernel("elementwise", phase, megabytes * MB, gigaoperations * 10**9, last_call)


def test_each_kernel_is_bound_by_memory_or_compute() -> None:
    assert minimum_seconds([kernel(10, 2, 0), kernel(3, 20, 1)], GPU) == pytest.approx(0.010 + 0.020)


def test_a_ring_sends_each_byte_nearly_twice() -> None:
    one = all_reduce([kernel(1, 0, 0)], [Gradient(25 * MB, 1)], GPU, 8)
    assert one.sent == pytest.approx(2 * 7 / 8 * 100 * MB)
    assert one.seconds == pytest.approx(0.175)
    assert all_reduce([kernel(1, 0, 0)], [Gradient(25 * MB, 1)], GPU, 8, element_size=2).sent == one.sent / 2
    assert all_reduce([kernel(1, 0, 0)], [Gradient(25 * MB, 1)], GPU, 1).sent == 0


def test_buckets_are_sent_during_the_backward_pass() -> None:
    # note: two buckets of 30 MB, ready after 10 and 110 ms; each needs 30 ms between two GPUs
    gradients = [Gradient(7_500_000, 1), Gradient(7_500_000, 2)]
    kernels = [kernel(10, 0, 0), kernel(100, 0, 1), kernel(5, 0, 2, phase="update")]
    assert all_reduce(kernels, gradients, GPU, 2).exposed == pytest.approx(0.030)
    # note: both ready only at the end, so none is hidden
    assert all_reduce(kernels[1:], [Gradient(7_500_000, 2)] * 2, GPU, 2).exposed == pytest.approx(0.060)


def test_compressed_gradients_have_the_same_buckets() -> None:
    # note: buckets of 4, 28 and 28 MB; the last is ready at the end
    gradients = [Gradient(1_000_000, 1), Gradient(7_000_000, 2), Gradient(7_000_000, 3)]
    kernels = [kernel(100, 0, number) for number in range(3)]
    assert all_reduce(kernels, gradients, GPU, 2).exposed == pytest.approx(0.028)
    assert all_reduce(kernels, gradients, GPU, 2, element_size=2).exposed == pytest.approx(0.014)


def test_every_gpu_has_a_link() -> None:
    assert all(gpu.link < gpu.bandwidth for gpu in gpus().values())
