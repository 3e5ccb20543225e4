"""Predict a run's time on another machine from its counted steps, the machine's limits and efficiencies.

A kernel takes as long as its operations at the matrix throughput or its bytes at the bandwidth, whichever is longer,
each divided by an efficiency; a step takes as long as its kernels or the host's launches, whichever is longer, and what
the all-reduce adds. `estimate` then sums the steps over the schedule, as it does with measured ones.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np

from launcher.config.fields import is_on
from launcher.config.gpus import Gpu, efficiencies
from launcher.config.hardware import Hardware
from launcher.config.schema import RunConfig
from launcher.data.loaders.features import FeatureLoader
from launcher.errors import Problem, UserError
from launcher.files.cache import cached
from launcher.measure.estimate import Estimate, EvaluationTimes, Measurement, Span, StepTimes, estimate
from launcher.plan.counted import CACHE, CountedStep, computed, traced_samples
from launcher.plan.plan import Plan
from launcher.plan.step_kinds import StepKind, common_acting, step_kinds
from launcher.prediction.faster import described, fastest
from launcher.prediction.machines import loading_rate
from launcher.prediction.rates import Parts, Rates


@dataclass(frozen=True)
class Phase:
    """The steps at one image size: their number, the mean seconds of a step with its loading, and the bottleneck."""

    view: int
    steps: int
    seconds: float
    bound: str


def main_bound(phases: Sequence[Phase]) -> str:
    """Return the bottleneck of most of the time."""
    times: dict[str, float] = {}
    for phase in phases:
        times[phase.bound] = times.get(phase.bound, 0.0) + phase.steps * phase.seconds
    return max(times, key=lambda bound: times[bound])


@dataclass(frozen=True)
class Prediction:
    """A run on a machine: its times with their range, and the memory that a GPU needs.

    `made_from` is the source of the efficiencies; `steps` is how they are computed, such as `compiled`; `correction`
    multiplies their seconds.
    """

    machine: Hardware
    estimate: Estimate
    phases: list[Phase]
    memory_gigabytes: float
    fits: bool
    made_from: str
    steps: str = "eager"
    correction: float = 1.0

    @property
    def steps_seconds(self) -> float:
        """Seconds of all steps with their loading, as published minutes count them."""
        return sum(phase.steps * phase.seconds for phase in self.phases)


def counted_steps(plan: Plan) -> list[CountedStep]:
    """Return the kinds of steps of a run, each at its smallest and largest image size; traced once, then cached."""

    def trace() -> list[CountedStep]:
        from launcher.prediction.step_trace import trace_steps  # note: imports torch, and takes seconds

        return trace_steps(plan, traced_samples(plan))

    return cached(CACHE, computed(plan), list[CountedStep], trace)


class Predictor:
    """A plan's counted steps, for machines with as many GPUs as the plan has processes on a node.

    Traces the steps if neither `counted` nor the cache has them.

    Raises UserError if the steps have features instead of images.
    """

    def __init__(self, plan: Plan, counted: Sequence[CountedStep] | None = None):
        if isinstance(plan.config.dataloader, FeatureLoader):
            message = "has steps of the last layer alone, which predictions do not have; type train estimate"
            raise UserError(Problem(message, "dataloader", "features"))
        self.plan, self.counted = plan, counted or counted_steps(plan)

    def on(
        self, machine: Hardware, gpu: Gpu, values: Mapping[str, Any] | None = None, correction: float = 1.0,
        made_from: str = "",
    ) -> Prediction:  # fmt: skip
        """Predict the run on a machine, with the fastest steps that `auto` allows.

        `correction` multiplies the seconds of its steps.
        """
        values = values or efficiencies()
        config = self.fastest(machine, gpu, values, correction)
        model = self._model(config, machine, gpu, values, correction)
        peak = max(step.peak_bytes for step in self.counted) / 1e9
        fits = peak <= values["assumed"]["memory"] * gpu.memory
        phases = model.phases()
        estimate = model.estimate(main_bound(phases))
        return Prediction(machine, estimate, phases, peak, fits, made_from, described(config), correction)

    def fastest(self, machine: Hardware, gpu: Gpu, values: Mapping[str, Any], correction: float = 1.0) -> RunConfig:
        """Return the config with the steps that are predicted to be the fastest, of those that `auto` allows."""
        return fastest(self.plan.config, gpu, lambda config: self.seconds(config, machine, gpu, values, correction))

    def seconds(
        self, config: RunConfig, machine: Hardware, gpu: Gpu, values: Mapping[str, Any], correction: float = 1.0
    ) -> float:
        """Return the predicted seconds of all steps, and of compiling them, with a config that differs in `auto`."""
        steps = self._model(config, machine, gpu, values, correction).steps_seconds
        return steps + is_on(config.compile) * float(values["assumed"]["compile"])

    def _model(
        self, config: RunConfig, machine: Hardware, gpu: Gpu, values: Mapping[str, Any], correction: float
    ) -> "_Model":
        nodes, network = config.launch.nnodes, machine.network or math.inf
        rates = Rates(gpu, self.plan.world_size, values, nodes, network)
        return _Model(replace(self.plan, config=config), machine, rates, self.counted, correction)


class _Model:
    """A plan's steps on a machine, interpolated in the area of images or length of texts between the counted views."""

    def __init__(self, plan: Plan, machine: Hardware, rates: Rates, counted: Sequence[CountedStep], correction: float):
        self._plan, self._machine, self._rates, self._correction = plan, machine, rates, correction
        self._parts = {StepKind(step.view, step.acting): rates.parts(step, plan.config) for step in counted}
        self._kinds = step_kinds(plan)
        self._common = common_acting(self._kinds)

    def parts(self, kind: StepKind) -> Parts:
        """Return a step's parts at any view."""
        known = sorted(known for known in self._parts if known.acting == kind.acting)
        areas = [self._plan.per_step(one.view) for one in known]
        columns = zip(*(astuple(self._parts[one]) for one in known), strict=True)
        return Parts(
            *(self._correction * float(np.interp(self._plan.per_step(kind.view), areas, of)) for of in columns)
        )

    def load(self, size: int) -> float:
        """Return the seconds until the machine's workers have loaded a step's batch."""
        step = next(steps[-1] for kind, steps in self._kinds.items() if kind.view == size)
        loaded = math.prod(self._plan.loaded_size(step))
        return self._plan.batch_size / loading_rate(self._plan, self._machine, loaded, self._rates.values)

    def phases(self) -> list[Phase]:
        """Return the steps of each image size in the schedule."""
        phases = []
        for size in sorted({kind.view for kind in self._kinds}):
            here = {kind: len(steps) for kind, steps in self._kinds.items() if kind.view == size}
            steps, load = sum(here.values()), self.load(size)
            parts = [astuple(self.parts(kind)) for kind in here]
            mean = Parts(*np.average(parts, axis=0, weights=[*here.values()]).tolist())
            phases.append(Phase(size, steps, max(mean.seconds, load), mean.bound(load)))
        return phases

    @property
    def steps_seconds(self) -> float:
        """Seconds of all steps with their loading."""
        return sum(phase.steps * phase.seconds for phase in self.phases())

    def estimate(self, bound: str) -> Estimate:
        """Return the run's times; their range is the error of held-out figures with such a bottleneck."""
        central = estimate(self._plan, self._measurement())
        spread = self._rates.values["spread"]["loader" if bound == "loader" else "device"]
        spans: dict[str, Any] = {
            name: Span(span.seconds, span.seconds / (1 + spread), span.seconds * (1 + spread))
            for name, span in vars(central).items()
            if isinstance(span, Span)
        }
        return replace(central, **spans)

    def _measurement(self) -> Measurement:
        """Return the predicted times in the form of measured ones."""
        assumed, views = self._rates.values["assumed"], sorted({kind.view for kind in self._kinds})
        start = assumed["start"] + is_on(self._plan.config.compile) * assumed["compile"]
        steps = [self._times(kind) for kind in sorted(self._kinds, key=lambda kind: kind.acting != self._common)]
        return Measurement(
            device=self._machine.gpu or "", world_size=self._plan.world_size, workers=0,
            cores=self._machine.cores or 0, start_seconds=start, steps=steps, transfer_seconds=[0.0],
            first_batch_seconds=assumed["first_batch"], epoch_start_seconds=[assumed["epoch_start"]],
            new_size_seconds=[*map(self._first_step, views)], evaluation=self._evaluation(),
            save_seconds=[assumed["save"]], last_save_seconds=assumed["save"],
        )  # fmt: skip

    def _first_step(self, view: int) -> float:
        assumed = self._rates.values["assumed"]
        return float(assumed["new_size"] + (view in self._plan.tuned_views) * assumed["tuning"])

    def _times(self, kind: StepKind) -> StepTimes:
        step, load = self.parts(kind).seconds, self.load(kind.view)
        common = kind.acting == self._common
        loads, both = ([load], [max(step, load)]) if common else (None, None)
        return StepTimes(kind.view, list(kind.acting), [step], loads, both)

    def _evaluation(self) -> EvaluationTimes:
        """Return the seconds of an evaluation batch: a fraction of a training step's by area, or its loading."""
        plan, assumed = self._plan, self._rates.values["assumed"]
        passes = assumed["evaluation"] * _passes(plan)
        largest = max(kind for kind in self._kinds if kind.acting == self._common)
        area = math.prod(plan.evaluation_size) / plan.per_step(largest.view)
        images = (plan.config.dataset.val_samples or 0) / plan.world_size
        batches = math.ceil(images / plan.rank_eval_batch)
        # note: few validation images are less than a batch
        batch = images / max(1, batches)
        step = self.parts(largest).seconds * area * passes * batch / plan.rank_batch
        pixels = math.prod(plan.loaded_evaluation_size)
        rate = loading_rate(plan, self._machine, pixels, self._rates.values, trains=False)
        load = batch * plan.world_size / rate
        return EvaluationTimes(assumed["first_batch"], [assumed["epoch_start"]], [max(step, load)], batches)


def _passes(plan: Plan) -> int:
    """Return how many outputs an evaluation averages for an image."""
    image = plan.config.image
    return {"centre": 1, "5crop": 5, "scales": 3, "shifts": 3}[image.eval_views] * (2 if image.eval_flip_average else 1)
