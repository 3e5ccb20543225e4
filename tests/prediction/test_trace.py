import pytest
import torch
from torch import nn

from launcher.data.batch import constant
from launcher.prediction.fusion import eager_kernels
from tests.traces import traced


def test_a_convolution_is_counted_as_by_hand() -> None:
    layer, images = nn.Conv2d(3, 8, 3, padding=1, bias=False), torch.zeros(2, 3, 16, 16)
    trace = traced(lambda: layer(images).sum().backward(), layer)
    forward, backward = (call for call in trace.calls if call.kind == "convolution")
    # note: 2 operations for each of 3 x 3 x 3 weights of each of 2 x 8 x 16 x 16 outputs; backward for weights alone
    products = 2 * 27 * 2 * 8 * 16 * 16
    assert (forward.operations, backward.operations) == (products, products)
    weight, output = 4 * 8 * 27, 4 * 2 * 8 * 16 * 16
    assert eager_kernels([forward])[0].moved == 4 * images.numel() + weight + output
    assert trace.waits == 0
    assert [gradient.elements for gradient in trace.gradients] == [8 * 27]


def test_a_decomposition_is_counted_by_the_rows_of_all_its_matrices() -> None:
    def decompose() -> None:
        torch.linalg.eigh(torch.zeros(3, 8, 8))
        torch.linalg.qr(torch.zeros(2, 5, 5))

    counted = {call.kind: call.operations for call in traced(decompose, nn.Identity()).calls if call.operations}
    assert counted == {"eigenvectors": 24, "qr": 10}


def test_a_convolution_in_groups_has_equal_products_forward_and_for_both_gradients() -> None:
    layer, images = nn.Conv2d(12, 12, 3, padding=1, groups=4), torch.zeros(2, 12, 16, 16, requires_grad=True)
    forward, backward = (c for c in traced(lambda: layer(images).sum().backward(), layer).calls if c.operations)
    assert forward.operations == 2 * 3 * 9 * 2 * 12 * 16 * 16
    assert backward.operations == 2 * forward.operations


def test_a_batch_norm_writes_the_outputs_of_pytorch() -> None:
    layer, images = nn.BatchNorm2d(6), torch.zeros(2, 6, 4, 4, requires_grad=True)
    calls = {call.name: call for call in traced(lambda: layer(images).sum().backward(), layer).calls}
    # note: the output, or the images' gradient, and two numbers a channel; forward also its running statistics
    pixels, numbers = 4 * images.numel(), 2 * 4 * 6
    assert sum(calls["native_batch_norm"].writes.values()) in (pixels + numbers, pixels + 2 * numbers)
    assert sum(calls["native_batch_norm_backward"].writes.values()) == pixels + numbers


def test_only_the_tensors_that_a_call_reads_or_changes_are_counted() -> None:
    weights, gradients, momenta = ([torch.zeros(size) for size in (100, 7)] for _ in range(3))
    images, kernel = torch.zeros(2, 3, 16, 16, requires_grad=True), torch.zeros(5, 3, 1, 1)

    def step() -> None:
        settings = {"weight_decay": 0.0, "momentum": 0.9, "lr": 0.1, "dampening": 0.0, "nesterov": False}
        torch._fused_sgd_(weights, gradients, momenta, maximize=False, is_first_step=False, **settings)
        torch.add(weights[0], 1, out=weights[0])
        weights[0].copy_(gradients[0])
        torch.nn.functional.conv2d(images, kernel).sum().backward()

    moved = {c.name: (sum(c.reads.values()), sum(c.writes.values())) for c in traced(step, nn.Identity()).calls}
    # note: weights and momenta change, gradients do not
    assert moved["_fused_sgd_"] == (3 * 4 * 107, 2 * 4 * 107)
    assert moved["add"] == (400, 400)
    assert moved["copy_"] == (400, 400)
    # note: the gradient of images needs only the kernel; all the output's gradients are one number, expanded
    output, read = 4 * 2 * 5 * 16 * 16, 4 * 5 * 3
    assert moved["convolution_backward"] == (output + read, 4 * images.numel())


@pytest.mark.parametrize(
    ("rows", "inner", "columns", "fill"),
    [(128, 96, 64, 1.0), (128, 8, 64, 8 / 32), (96, 32, 16, (96 / 128) * (16 / 64)), (1000, 4, 4, 1.0)],
)
def test_a_small_product_uses_a_part_of_its_tiles(rows: int, inner: int, columns: int, fill: float) -> None:
    left, right = torch.zeros(3, rows, inner), torch.zeros(3, inner, columns)
    for product in (
        lambda: left @ right,
        lambda: left[0] @ right[0],
        lambda: torch.addmm(right[0, 0], left[0], right[0]),
        lambda: torch.baddbmm(torch.zeros(3, rows, columns), left, right),
    ):
        (call,) = (call for call in traced(product, nn.Identity()).calls if call.operations)
        assert (call.kind, call.fill) == ("matmul", pytest.approx(fill))


def test_slices_of_channels_move_whole_bursts_and_joined_tensors_are_strided() -> None:
    images = torch.zeros(2, 24, 4, 4, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    half, whole = images[:, :12], torch.zeros(2, 256, 4, 4).to(memory_format=torch.channels_last)[:, :128]
    calls = traced(lambda: (half + 1, whole + 1, images + 1, torch.cat([images, images], 1)), nn.Identity()).calls
    assert [call.strided for call in calls] == [True, True, False, True]
    # note: 24 of 48 bytes are read for each pixel, and a burst of 64 fetches the rest too, but for the last pixel's
    assert [call.unused for call in calls] == [2 * (31 * 24 + 12) - half.numel() * 2, 0, 0, 0]


def test_reads_of_device_values_are_counted() -> None:
    value = torch.ones(3)
    trace = traced(lambda: (float(value.sum()), bool(value.isfinite().all())), nn.Identity())
    assert trace.waits == 2


def test_views_move_nothing() -> None:
    value = torch.ones(4, 6)
    assert traced(lambda: value.view(24)[3:].reshape(7, 3).t(), nn.Identity()).calls == []
    products = nn.Linear(6, 2, bias=False)
    names = [call.name for call in traced(lambda: products(torch.empty(2, 5, 6)), products).calls]
    assert names == ["mm"]


def test_the_calls_of_the_network_are_separated_from_others() -> None:
    layer = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1, foreach=False)

    def step() -> None:
        inputs = torch.ones(3, 4) * 2
        layer(inputs).sum().backward()
        optimizer.step()

    phases = [(call.phase, call.name) for call in traced(step, layer).calls]
    assert phases[:2] == [("prepare", "ones"), ("prepare", "mul")]
    assert {name for phase, name in phases if phase == "update"} == {"add_"}
    assert {phase for phase, name in phases if name in ("addmm", "mm", "sum")} == {"network"}


def test_a_trace_leaves_no_fake_tensors_behind() -> None:
    def constants() -> torch.Tensor:
        return constant((0.25, 0.5), torch.float32, torch.device("cpu"))

    traced(constants, nn.Identity())
    assert constants().flatten().tolist() == [0.25, 0.5]
