"""Derive what a run will do from its config, before it starts; needs neither torch, GPU nor data."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from launcher.config.choices import Clock
from launcher.config.declaration import AlgorithmConfig, Size
from launcher.config.fields import in_ratio, in_steps
from launcher.config.keys import longest_fraction
from launcher.config.layers import leaves, put
from launcher.config.resolved import as_mapping
from launcher.config.schema import Launch, RunConfig
from launcher.config.validate import validate
from launcher.plan.epochs import dilated_epochs

# Passes at one view from which cuDNN's tuning pays.
_TUNED_PASSES = 10_000


def plan_for(config: RunConfig, processes: int) -> Plan:
    """Return the plan of a config with counted images on a number of processes; fits times if `schedule.fit=on`."""
    assert config.dataset.train_samples is not None
    return fitted(Plan(config, processes, config.dataset.train_samples))


def processes_of_node(launch: Launch, gpus: int) -> int:
    """Return the number of processes of a node: `launch.nproc`, else one per GPU, else one on the CPU."""
    if launch.nproc != "auto":
        return launch.nproc
    return 1 if launch.device == "cpu" else max(1, gpus)


@dataclass(frozen=True)
class Plan:
    """Derived quantities of a run on `world_size` processes; `train_samples` as counted.

    `shortened` maps the keys that `schedule.fit` shortened to their configured values.
    """

    config: RunConfig
    world_size: int
    train_samples: int
    shortened: Mapping[str, Any] = field(default_factory=dict)
    _starts: dict[int, list[int]] = field(default_factory=dict, init=False, compare=False, repr=False)

    @cached_property
    def epochs(self) -> int:
        """Epochs after dilation."""
        return dilated_epochs(self.config.epochs, self.config.schedule.dilate)

    @cached_property
    def batch_size(self) -> int:
        """Return the global batch size, which has been measured if the command line has `auto`."""
        assert self.config.batch_size != "auto"
        return self.config.batch_size

    @cached_property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of an epoch; the last partial batch is dropped."""
        return self.train_samples // self.batch_size

    @cached_property
    def total_steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    def epoch_start(self, step: int) -> int:
        """Return the first step of the epoch of a step."""
        return step - step % self.steps_per_epoch

    @cached_property
    def rank_batch(self) -> int:
        """Images per process and optimizer step."""
        return self.batch_size // self.world_size

    @cached_property
    def rank_eval_batch(self) -> int:
        """Images per process and evaluation batch."""
        return max(1, self.config.eval_batch_size // self.world_size)

    @cached_property
    def accumulation(self) -> int:
        """Micro-batches per optimizer step: the fewest equal ones within `device_batch_size`."""
        most = self.config.device_batch_size or self.rank_batch
        return next(
            n for n in range(1, self.rank_batch + 1) if self.rank_batch % n == 0 and self.rank_batch // n <= most
        )

    @cached_property
    def peak_lr(self) -> float:
        """The recipe's learning rate, scaled linearly from its reference batch with `scale_lr` (Goyal et al. 2017)."""
        optimizer = self.config.optimizer
        scale = self.batch_size / optimizer.reference_batch_size if optimizer.scale_lr == "linear" else 1.0
        return optimizer.lr * scale

    def lr_multiplier(self, step: int) -> float:
        """Return the multiplier of the peak learning rate at a zero-based optimizer step, in [0, 1].

        With `granularity: epoch` all steps of an epoch have the value of its first.
        """
        schedule, stair = self.config.schedule, 1
        if schedule.granularity == "epoch":
            step, stair = self.epoch_start(step), self.steps_per_epoch
        return schedule.multiplier(Clock(*self._clock(step), stair, self.schedule_steps))

    def _clock(self, step: int) -> tuple[float, float, float]:
        """Return a step's place in the schedule, the schedule's length and its warmup, in steps.

        With `progress: compute` those of a run whose samples all have the view of the step.
        """
        if not self.config.schedule.counts_compute:
            return step, self.total_steps, self.warmup_steps
        warmup, total = self.config.schedule.warmup, self.amount / self.per_step(self.view(step))
        length = self.schedule_steps(warmup) * (total / self.total_steps if warmup.endswith("dur") else 1)
        return self.progress(step) * total, total, length

    def progress(self, step: int) -> float:
        """Return the fraction of the run before a step: of its steps, or of its inputs with `progress: compute`."""
        if not self.config.schedule.counts_compute or step >= self.total_steps:
            return step / self.total_steps
        first, view, before = self._segments[bisect_right(self._segments, step, key=lambda segment: segment[0]) - 1]
        return (before + (step - first) * self.per_step(view)) / self.amount

    def step_at(self, progress: float) -> int:
        """Return the first step at a fraction of the run."""
        return bisect_left(range(self.total_steps), progress - 1e-9, key=self.progress)

    def part(self, step: int, parts: int) -> int:
        """Return which of equal parts of the run a step is in, zero-based."""
        return bisect_right(self.starts(parts), step) - 1

    def starts(self, parts: int) -> list[int]:
        """Return the first steps of equal parts of the run, cached; a new view up to two steps away is one."""
        if parts not in self._starts:
            changes = [first for first, _, _ in self._segments]
            near = 2 * (1 - self.progress(self.total_steps - 1))
            places = [part / parts for part in range(parts)]
            snapped = ((first for first in changes if abs(self.progress(first) - place) <= near) for place in places)
            self._starts[parts] = sorted(map(next, snapped, map(self.step_at, places)))
        return self._starts[parts]

    @cached_property
    def _segments(self) -> list[tuple[int, int, int]]:
        """The steps of each view: the first one, the view, and the amount before."""
        segments, amount = [], 0
        for steps in self.of_equal_view(range(self.total_steps)):
            view = self.view(steps[0])
            segments.append((steps[0], view, amount))
            amount += len(steps) * self.per_step(view)
        return segments

    @cached_property
    def tuned_views(self) -> frozenset[int]:
        """The views at which cuDNN tunes: that takes 8 s on an H200, which passes of 30 ms repay if it gains 3 %."""
        views = [] if self.config.deterministic else self.of_equal_view(range(self.total_steps))
        return frozenset(self.view(steps[0]) for steps in views if len(steps) * self.accumulation >= _TUNED_PASSES)

    @cached_property
    def amount(self) -> int:
        """What a sample of each step has together: pixels, or tokens."""
        first, view, before = self._segments[-1]
        return before + (self.total_steps - first) * self.per_step(view)

    def per_step(self, view: int) -> int:
        """Return what a sample of a view has: its pixels, or tokens."""
        return math.prod(in_ratio(view, self.full_size))

    def of_equal_view(self, steps: range) -> Iterator[range]:
        """Split steps into ranges of one view each, in order; views never shrink during a run."""
        if not steps:
            return
        first, last = self.view(steps[0]), self.view(steps[-1])
        if first == last:
            yield steps
            return
        end = bisect_right(steps, first, key=self.view)
        yield steps[:end]
        yield from self.of_equal_view(steps[end:])

    def lr(self, step: int) -> float:
        return self.peak_lr * self.lr_multiplier(step)

    @cached_property
    def full_size(self) -> Size:
        return self.config.task.full_size(self.config)

    @property
    def full_view(self) -> int:
        return min(self.full_size)

    @cached_property
    def evaluation_size(self) -> Size:
        return self.config.task.evaluation_size(self.config)

    @property
    def loaded_evaluation_size(self) -> Size:
        return self.config.task.loaded_evaluation_size(self.config)

    def size(self, step: int) -> Size:
        """Return the size of the inputs of a step."""
        size = self.loaded_size(step)
        for values in self._resizing:
            size = values.size_after(self, step, size)
        return size

    def view(self, step: int) -> int:
        """Return the view of a step: the shorter edge at an equal area in the ratio of `full_size`."""
        area = math.prod(self.size(step)) * min(self.full_size) / max(self.full_size)
        return round(math.pow(area, 1 / self.config.task.axes))

    def loaded_size(self, step: int) -> Size:
        """Return the size that the loader produces for a step."""
        return in_ratio(self.loaded_view(step), self.full_size)

    @cached_property
    def _resizing(self) -> list[AlgorithmConfig]:
        """The algorithms that change the size of inputs, in their order."""
        algorithms = self.config.algorithms
        active = [algorithms.get(name) for name in algorithms.acting("change_batch")]
        return [one for one in active if one and type(one).size_after is not AlgorithmConfig.size_after]

    def loaded_view(self, step: int) -> int:
        """Return the view that the loader produces for a step: that step's, or a larger one that changes later."""
        sizes = [values.loaded_view(self, step) for values in self._resizing]
        return min((size for size in sizes if size), default=self.full_view)

    def schedule_steps(self, duration: str) -> int:
        """Convert a schedule's duration to steps: epochs and batches are dilated, fractions of the run already are."""
        dilate = self.config.schedule.dilate
        return self.steps(duration) if duration.endswith("dur") else round(self.steps(duration) * dilate)

    @cached_property
    def warmup_steps(self) -> int:
        if self.config.schedule.counts_compute:
            return bisect_left(
                range(self.total_steps), True, key=lambda step: self._clock(step)[0] >= self._clock(step)[2]
            )
        return self.schedule_steps(self.config.schedule.warmup)

    def every(self, duration: str) -> int:
        """Convert an interval to steps, at least one."""
        return max(1, self.steps(duration))

    def is_due(self, step: int, interval: str) -> bool:
        """Return whether an event at every interval is due after `step` steps."""
        return step % self.every(interval) == 0

    def steps(self, duration: str) -> int:
        """Convert a duration to steps."""
        return in_steps(duration, steps_per_epoch=self.steps_per_epoch, total_steps=self.total_steps)


def fitted(plan: Plan) -> Plan:
    """Shorten durations that are too long for the run to the fraction that their type states, with `schedule.fit=on`.

    Fractions of the run stay. Several durations of one key keep their ratios.
    """
    if plan.config.schedule.fit == "off" or not plan.total_steps:
        return plan
    values, shortened = as_mapping(plan.config), {}
    for key, value in list(leaves(values)):
        fraction = longest_fraction(key)
        if fraction is None or not value or (short := _shortened(plan, key, value, fraction)) == value:
            continue
        put(values, key, short)
        shortened[key] = value
    return replace(plan, config=validate(values), shortened=shortened) if shortened else plan


def _shortened(plan: Plan, key: str, value: str | list[str], fraction: float) -> str | list[str]:
    """Scale a key's durations so that the longest is at most a fraction of the run; fractions stay."""
    texts = [value] if isinstance(value, str) else value
    in_steps = plan.schedule_steps if key.startswith("schedule.") else plan.steps
    longest = max(in_steps(text) for text in texts)
    if longest <= fraction * plan.total_steps or all(text.endswith("dur") for text in texts):
        return value
    parts = [f"{fraction * in_steps(text) / longest:.6g}dur" for text in texts]
    return parts[0] if isinstance(value, str) else parts
