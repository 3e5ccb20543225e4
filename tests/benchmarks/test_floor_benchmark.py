from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmarks import floor
from benchmarks.floor import Call


def test_a_convolution_is_counted_as_by_hand() -> None:
    layer = nn.Conv2d(3, 8, 3, padding=1, bias=False)
    images = torch.zeros(2, 3, 16, 16)
    trace = floor.traced(lambda: layer(images).sum().backward())
    forward, backward = (call for call in trace.calls if call.kind == "convolution")
    # note: 2 operations for each of 3 x 3 x 3 weights of each of 2 x 8 x 16 x 16 outputs; backward for weights alone
    products = 2 * 27 * 2 * 8 * 16 * 16
    assert (forward.operations, backward.operations) == (products, products)
    weight, output = 4 * 8 * 27, 4 * 2 * 8 * 16 * 16
    assert floor.eager_bytes([forward]) == 4 * images.numel() + weight + output
    assert trace.waits == 0


def test_reads_of_device_values_are_counted() -> None:
    value = torch.ones(3)
    trace = floor.traced(lambda: (float(value.sum()), bool(value.isfinite().all())))
    assert trace.waits == 2


def test_views_move_nothing() -> None:
    value = torch.ones(4, 6)
    assert [call.name for call in floor.traced(lambda: value.view(24)[3:].reshape(7, 3).t()).calls] == []


@pytest.mark.parametrize(
    ("kind", "fused"),
    # note: reads a (10) and d (30), writes c (20); b lives in registers; batch norm reads its largest input (10) again
    [("elementwise", 10 + 30 + 20), ("batch norm", 10 + 30 + 20 + 10)],
)
def test_a_run_of_elementwise_calls_is_one_kernel(kind: str, fused: int) -> None:
    a, b, c, d, e = range(5)
    calls = [
        Call("mul", kind, 0, {a: 10}, {b: 10}),
        Call("add", "elementwise", 0, {b: 10, d: 30}, {c: 20}),
        Call("convolution", "convolution", 5, {c: 20}, {e: 7}),
    ]
    assert floor.eager_bytes(calls) == 20 + 60 + 27
    assert floor.fused_bytes(calls) - floor.fused_bytes(calls[2:]) == fused
