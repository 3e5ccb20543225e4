"""What a run will take on a machine that is not there: its counted steps at the machine's rates, times efficiencies.

A kernel takes its operations at the matrix rate or its bytes at the bandwidth, whichever is longer, each times what a
stack reaches of it; a step is its kernels or the host's calls, whichever is longer, and what the all-reduce adds. Then
`estimate` integrates over the schedule as it does over measured steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

import numpy as np

from lab.predict.machines import Gpu, loading_rate
from lab.predict.step_counts import CountedStep, Work, counted_steps
from launcher import paths
from launcher.config.schema import Hardware, RunConfig
from launcher.config.yaml_file import read_mapping
from launcher.measure.estimate import Estimate, EvaluationTimes, Measurement, Span, StepTimes, estimate
from launcher.plan.plan import Plan
from launcher.plan.step_kinds import StepKind, common_acting, step_kinds


@cache
def efficiencies() -> dict[str, Any]:
    """conf/efficiencies.yaml."""
    return read_mapping(paths.CONF / "efficiencies.yaml")


@dataclass(frozen=True)
class Parts:
    """Seconds of a step: kernels bound by arithmetic and by memory, the host's calls, what the all-reduce adds."""

    arithmetic: float
    memory: float
    launches: float
    exchange: float

    @property
    def seconds(self) -> float:
        return max(self.arithmetic + self.memory, self.launches) + self.exchange

    def bound(self, load: float) -> str:
        """What to make faster first, given the seconds of loading a batch."""
        if load > self.seconds:
            return "loader"
        if self.launches > self.arithmetic + self.memory:
            return "launches"
        named = {"arithmetic": self.arithmetic, "memory": self.memory, "all-reduce": self.exchange}
        return max(named, key=lambda name: named[name])


@dataclass(frozen=True)
class Phase:
    """The steps at one side: how many, the mean seconds of a step with its loading, and what bounds them."""

    image_size: int
    steps: int
    seconds: float
    bound: str


@dataclass(frozen=True)
class Prediction:
    """A run on a machine: its times with their range, cost where there is a price, and the memory that a GPU needs.

    `made_from` says where the efficiencies come from.
    """

    machine: Hardware
    found: Estimate
    phases: list[Phase]
    memory_gigabytes: float
    fits: bool
    made_from: str

    @property
    def steps_seconds(self) -> float:
        """Seconds of all steps with their loading, as published minutes count them."""
        return sum(phase.steps * phase.seconds for phase in self.phases)


@dataclass(frozen=True)
class Rates:
    """What is asked of a machine: a GPU, how many, and the values of conf/efficiencies.yaml."""

    gpu: Gpu
    count: int
    values: Mapping[str, Any] = field(default_factory=efficiencies)

    def parts(self, counted: CountedStep, config: RunConfig) -> Parts:
        """The seconds of one step on each of the GPUs, launched as a config says."""
        fused = config.compile == "on"
        channels_last = any(one.in_channels_last for one in config.algorithms.active().values())
        stack = self.values["stacks"]["fused" if fused else "eager"]
        works = counted.fused if fused else counted.eager
        arithmetic = memory = 0.0
        for work in works:
            products, moves, copies = self._kernel(work, stack, channels_last)
            arithmetic += work.count * products * (products > moves)
            memory += work.count * (moves * (products <= moves) + copies + stack["kernel"])
        calls = sum(work.count for work in works)
        launches = calls * (self.values["captured_call"] if config.cuda_graphs == "on" else stack["call"])
        return Parts(arithmetic, memory, launches, self._exchange(arithmetic + memory, counted.gradient_bytes))

    def _kernel(self, work: Work, stack: Mapping[str, Any], channels_last: bool) -> tuple[float, float, float]:
        """Seconds for products, for bytes, and for the copies that cuDNN makes of what its matrix units cannot take."""
        memory, products = stack["memory"], stack["products"]
        moves = work.moved / (memory.get(work.kind, memory["other"]) * self.gpu.bandwidth * 1e9)
        if not work.operations:
            return 0.0, moves, 0.0
        reached = products[work.kind]
        if work.kind != "depthwise":
            grouped = min(1.0, work.group_width / products["group_width"])
            reached *= grouped if work.group_width else 1.0 if work.aligned else products["unaligned"]
        copied = work.kind == "convolution" and not (channels_last and (work.aligned or work.group_width))
        return work.operations / (reached * self.gpu.product_rate * 1e12), moves, 2 * moves if copied else 0.0

    def _exchange(self, device: float, gradient_bytes: int) -> float:
        if self.count == 1:
            return 0.0
        ring = 2 * (self.count - 1) / self.count * gradient_bytes / (self.gpu.link * 1e9)
        # note: the backward pass is two thirds of a step
        shown = max(0.0, ring - self.values["overlap"] * 2 / 3 * device)
        return float(device * (1 / self.values["ranks"] - 1) + shown)


class Predictor:
    """A plan's counted steps, to be put on machines that have as many GPUs as it has processes.

    Steps are traced if they are neither given nor kept.
    """

    def __init__(self, plan: Plan, counted: Sequence[CountedStep] | None = None):
        self.plan, self._counted = plan, counted or counted_steps(plan)

    def on(
        self, machine: Hardware, gpu: Gpu, values: Mapping[str, Any] | None = None, correction: float = 1.0,
        made_from: str = "",
    ) -> Prediction:  # fmt: skip
        """The run on a machine; `correction` multiplies its steps."""
        values = values or efficiencies()
        model = _Model(self.plan, machine, Rates(gpu, self.plan.world_size, values), self._counted, correction)
        peak = max(step.peak_bytes for step in self._counted) / 1e9
        fits = peak <= values["assumed"]["memory"] * gpu.memory
        return Prediction(machine, model.found(), model.phases(), peak, fits, made_from)


class _Model:
    """A plan's steps on a machine, between the sides that were counted by the images' area."""

    def __init__(self, plan: Plan, machine: Hardware, rates: Rates, counted: Sequence[CountedStep], correction: float):
        self._plan, self._machine, self._rates, self._correction = plan, machine, rates, correction
        self._parts = {StepKind(step.image_size, step.acting): rates.parts(step, plan.config) for step in counted}
        self._kinds = step_kinds(plan)
        self._common = common_acting(self._kinds)

    def parts(self, kind: StepKind) -> Parts:
        """A step's parts at any side."""
        known = sorted(known for known in self._parts if known.acting == kind.acting)
        areas = [one.image_size**2 for one in known]

        def at(name: str) -> float:
            found = np.interp(kind.image_size**2, areas, [getattr(self._parts[one], name) for one in known])
            return float(found) * self._correction

        return Parts(*(at(name) for name in ("arithmetic", "memory", "launches", "exchange")))

    def load(self, side: int) -> float:
        """Seconds until the machine's workers have loaded a step's batch."""
        step = next(steps[-1] for kind, steps in self._kinds.items() if kind.image_size == side)
        loaded = self._plan.loaded_size(step)
        return self._plan.config.batch_size / loading_rate(self._plan, self._machine, loaded, self._rates.values)

    def phases(self) -> list[Phase]:
        """Each side of the schedule."""
        phases = []
        for side in sorted({kind.image_size for kind in self._kinds}):
            here = {kind: len(steps) for kind, steps in self._kinds.items() if kind.image_size == side}
            steps, load = sum(here.values()), self.load(side)
            parts = {kind: self.parts(kind) for kind in here}
            means = {
                name: sum(getattr(parts[kind], name) * count for kind, count in here.items()) / steps
                for name in asdict(next(iter(parts.values())))
            }
            mean = Parts(**means)
            phases.append(Phase(side, steps, max(mean.seconds, load), mean.bound(load)))
        return phases

    def found(self) -> Estimate:
        """The run's times; the range is that of the efficiencies, as the held-out figures tell it."""
        once = estimate(self._plan, self._measurement())
        wide = self._rates.values["spread"]

        def ranged(span: Span) -> Span:
            return Span(span.seconds, span.seconds / (1 + wide), span.seconds * (1 + wide))

        spans = {name: ranged(getattr(once, name)) for name in ("training", "evaluation", "saving", "wall")}
        return Estimate(**{**vars(once), **spans})

    def _measurement(self) -> Measurement:
        """What a measurement of each kind would find."""
        assumed = self._rates.values["assumed"]
        steps = [self._times(kind) for kind in sorted(self._kinds, key=lambda kind: kind.acting != self._common)]
        return Measurement(
            device=self._machine.gpu or "",
            world_size=self._plan.world_size,
            workers=0,
            cores=self._machine.cores or 0,
            start_seconds=assumed["start"],
            steps=steps,
            transfer_seconds=[0.0],
            first_batch_seconds=assumed["first_batch"],
            epoch_start_seconds=[assumed["epoch_start"]],
            new_size_seconds=[assumed["new_size"]],
            evaluation=self._evaluation(),
            save_seconds=[assumed["save"]],
            last_save_seconds=assumed["save"],
        )

    def _times(self, kind: StepKind) -> StepTimes:
        step, load = self.parts(kind).seconds, self.load(kind.image_size)
        common = kind.acting == self._common
        loads, both = ([load], [max(step, load)]) if common else (None, None)
        return StepTimes(kind.image_size, list(kind.acting), [step], loads, both)

    def _evaluation(self) -> EvaluationTimes:
        """A batch of images: its part of a training step's device time by area, or its loading."""
        plan, assumed = self._plan, self._rates.values["assumed"]
        passes = assumed["evaluation"] * (2 if plan.config.image.eval_flip_average else 1)
        largest = max(kind for kind in self._kinds if kind.acting == self._common)
        side = plan.scaled_size(plan.config.image.eval_size)
        area = (side / largest.image_size) ** 2
        step = self.parts(largest).seconds * area * passes * plan.rank_eval_batch / plan.rank_batch
        rate = loading_rate(plan, self._machine, side, self._rates.values)
        load = plan.rank_eval_batch * plan.world_size / rate
        batches = math.ceil((plan.config.dataset.val_samples or 0) / plan.world_size / plan.rank_eval_batch)
        return EvaluationTimes(assumed["first_batch"], [assumed["epoch_start"]], [max(step, load)], batches)
