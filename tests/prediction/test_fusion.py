from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn

from launcher.config.compose import compose
from launcher.config.gpus import efficiencies, gpus
from launcher.plan.counted import CountedStep, Work
from launcher.prediction.fusion import compiled_kernels, eager_kernels
from launcher.prediction.rates import Rates
from launcher.prediction.trace import Call
from tests.traces import traced

a, b, c, d, e = range(5)
OF_COMPILED = efficiencies()["stacks"]["compiled"]


def moved(*calls: Call) -> list[int]:
    return [kernel.moved for kernel in compiled_kernels(calls)]


def call(name: str, kind: str, reads: dict[int, int], writes: dict[int, int], phase: str = "network") -> Call:
    return Call(name, kind, phase, reads, writes, elements=10)


MUL = call("mul", "elementwise", {a: 10}, {b: 10})
ADD = call("add", "elementwise", {b: 10, d: 30}, {c: 20})
LAST = call("convolution", "convolution", {c: 20}, {e: 7})


def test_elementwise_calls_are_one_kernel() -> None:
    # note: reads a (10) and d (30), writes c (20); b lives in registers, and nobody reads e
    assert moved(MUL, ADD, LAST) == [60, 20]
    assert [kernel.moved for kernel in eager_kernels([MUL, ADD, LAST])] == [20, 60, 27]


def test_only_later_kernels_read_the_result_of_a_reduction() -> None:
    total = call("sum", "reduction", {b: 10}, {c: 1})
    assert moved(MUL, total, call("div", "elementwise", {b: 10, c: 1}, {d: 10})) == [10 + 10 + 1, 10 + 1]


def test_the_update_is_eager_and_network_and_preparation_are_compiled_separately() -> None:
    for first, second, expected in (
        ("update", "update", [20, 10]),
        ("prepare", "prepare", [10]),
        ("prepare", "network", [20, 10]),
    ):
        made = call("mul", "elementwise", {a: 10}, {b: 10}, first)
        assert moved(made, call("add", "elementwise", {b: 10}, {c: 9}, second)) == expected


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(16, 16, 3, padding=1, bias=False) for _ in range(2))
        self.norm, self.last = nn.BatchNorm2d(16), nn.BatchNorm2d(16)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.last(self.second(torch.relu(self.norm(self.first(images))))) + images)


@pytest.mark.system
def test_bytes_and_kernels_match_inductors_count(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.graph import GraphLowering

    counted: list[tuple[int, int]] = []
    generate = GraphLowering.codegen

    def count(graph: Any) -> Any:
        generated = generate(graph)
        counted.append((graph.count_bytes()[0], len(graph.scheduler.nodes)))
        return generated

    monkeypatch.setattr(GraphLowering, "codegen", count)
    # note: what is counted needs no compiler, and its kernels need not run
    monkeypatch.setattr(AsyncCompile, "cpp_pybinding", lambda *_: lambda *_: None)
    stem = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    network = nn.Sequential(*stem, Block(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    network.to(memory_format=torch.channels_last)
    images, labels = torch.zeros(8, 3, 64, 64).to(memory_format=torch.channels_last), torch.zeros(8, dtype=torch.int64)

    def loss(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(network(images), labels)

    def step() -> None:
        network.zero_grad()
        loss(images, labels).backward()

    ours = compiled_kernels([call for call in traced(step, network).calls if call.phase == "network"])
    network.zero_grad()
    # note: code for one thread has fewer sums in two stages than a GPU; a trial of instruction sets takes seconds
    with config.patch({"fx_graph_cache": False, "cpp.threads": 2, "cpp.vec_isa_ok": True}):
        result = torch.compile(loss, dynamic=False)(images, labels)
        with suppress(RuntimeError):  # note: no kernel has written the indices of the largest pixels
            result.backward()
    assert len(counted) == 2
    moved, kernels = map(sum, zip(*counted, strict=True))
    assert sum(kernel.moved for kernel in ours) == pytest.approx(moved, rel=0.05)
    assert len(ours) == pytest.approx(kernels, rel=0.1)


@pytest.mark.parametrize(
    ("gpu", "work", "seconds"),
    [
        ("B200 180GB", Work("other", 10**9, 0, 1), 1 / (OF_COMPILED["bf16"]["other"] * 293)),
        ("A100 80GB", Work("other", 10**9, 0, 1), 1 / (OF_COMPILED["memory"]["other"] * 2039)),
        ("B200 180GB", Work("matrix", 10**9, 10**9, 1), 1 / (OF_COMPILED["memory"]["other"] * 8000)),
    ],
)
def test_fused_kernels_but_products_are_bound_by_cycles_where_memory_is_fast(
    gpu: str, work: Work, seconds: float
) -> None:
    step = CountedStep(64, (), [], [work], 0, 0)
    memory = Rates(gpus()[gpu], 1).parts(step, compose(["compile=on", "precision=bf16"]).config).memory
    assert memory - OF_COMPILED["kernel"] == pytest.approx(seconds, rel=0.01)
