"""The seconds of a counted step on a GPU: the GPU's limits, and the efficiencies of conf/efficiencies.yaml."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from launcher.config.fields import is_on
from launcher.config.gpus import Gpu, efficiencies
from launcher.config.schema import RunConfig
from launcher.plan.counted import CountedStep, Work


@dataclass(frozen=True)
class Parts:
    """Seconds of a step: compute-bound and bandwidth-bound kernels, the host's launches, and the exposed all-reduce."""

    arithmetic: float
    memory: float
    launches: float
    all_reduce: float

    @property
    def seconds(self) -> float:
        return max(self.arithmetic + self.memory, self.launches) + self.all_reduce

    def bound(self, load: float) -> str:
        """Return the bottleneck, given the seconds of loading a batch."""
        if load > self.seconds:
            return "loader"
        if self.launches > self.arithmetic + self.memory:
            return "launches"
        times = {"arithmetic": self.arithmetic, "memory": self.memory, "all-reduce": self.all_reduce}
        return max(times, key=lambda name: times[name])


@dataclass(frozen=True)
class Rates:
    """The limits of machines: a GPU, the number of all GPUs, and the values of conf/efficiencies.yaml.

    network: Gbit/s of each of several `nodes`.
    """

    gpu: Gpu
    count: int
    values: Mapping[str, Any] = field(default_factory=efficiencies)
    nodes: int = 1
    network: float = math.inf

    def parts(self, counted: CountedStep, config: RunConfig) -> Parts:
        """Return the seconds of one step on each of the GPUs, launched as the config sets it."""
        compiled = is_on(config.compile)
        channels_last = any(one.in_channels_last for one in config.algorithms.values())
        stack = self.values["stacks"]["compiled" if compiled else "eager"]
        if config.precision != "bf16" and not (config.precision == "auto" and self.gpu.bf16):
            stack = {**stack, "bf16": {}}
        works = counted.fused if compiled else counted.eager
        arithmetic = memory = 0.0
        for work in works:
            products, moves, copies = self._kernel(work, stack, channels_last)
            arithmetic += work.count * products * (products > moves)
            memory += work.count * (moves * (products <= moves) + copies + stack["kernel"])
        calls = sum(work.count for work in works)
        launches = calls * (self.values["captured_call"] if is_on(config.cuda_graphs) else stack["call"])
        all_reduce = self._all_reduce(arithmetic + memory, counted.gradient_bytes, stack["ranks"])
        return Parts(arithmetic, memory, launches, all_reduce)

    def _kernel(self, work: Work, stack: Mapping[str, Any], channels_last: bool) -> tuple[float, float, float]:
        """Return the seconds of a kernel's products, of its bytes, and of cuDNN's copies of operands."""
        if (row := self.values["row"].get(work.kind)) is not None:
            # note: ranks share eigenvectors
            return work.operations * row / (self.count if work.kind == "eigenvectors" else 1), 0.0, 0.0
        memory, products = stack["memory"], stack["products"]
        bandwidth = self.gpu.bandwidth_factor * self.gpu.bandwidth * 1e9
        moves = work.moved / (memory.get(work.kind, memory["other"]) * bandwidth)
        # note: products have kernels of their own
        per_cycle = stack["bf16"].get(work.kind, math.inf if work.operations else stack["bf16"].get("other", math.inf))
        moves = max(moves, work.moved / (per_cycle * self.gpu.cycles))
        if not work.operations:
            return 0.0, moves, 0.0
        efficiency = products[work.kind] * work.fill
        if work.kind != "depthwise":
            grouped = min(1.0, work.group_width / products["group_width"])
            efficiency *= grouped if work.group_width else 1.0 if work.aligned else products["unaligned"]
        # note: a depthwise convolution with channels first has its own kernels, which need no copies
        copied = {"convolution": not (channels_last and work.aligned), "depthwise": channels_last and not work.aligned}
        copies = 2 * work.moved / (memory["other"] * bandwidth) if copied.get(work.kind) else 0.0
        # note: the kernels of depthwise convolutions use no matrix units
        peak = self.gpu.vector_rate if work.kind == "depthwise" else self.gpu.product_rate
        return work.operations / (efficiency * peak * 1e12), moves, copies

    def _all_reduce(self, device: float, gradient_bytes: int, ranks: float) -> float:
        """Return the seconds that several GPUs add: `ranks` is the throughput of each relative to one GPU alone."""
        if self.count == 1:
            return 0.0
        of_nodes = self.values["nodes"]
        ranks *= of_nodes["doubling"] ** math.log2(self.nodes)
        # note: a ring goes through every machine once, on all its network cards
        between = of_nodes["network"] * self.network / 8 if self.nodes > 1 else math.inf
        link = min(self.gpu.link if self.count > self.nodes else math.inf, between)
        ring = 2 * (self.count - 1) / self.count * gradient_bytes / (link * 1e9)
        # note: the backward pass is two thirds of a step
        exposed = max(0.0, ring - self.values["overlap"] * 2 / 3 * device)
        return float(device * (1 / ranks - 1) + exposed)
