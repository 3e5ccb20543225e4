"""Sequence length warmup (Li et al. 2021): short sequences first, cut to a length that rises."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pydantic.dataclasses import dataclass

from launcher.algorithms.base import Algorithm, Size, Transform
from launcher.config.declaration import RunPlan
from launcher.config.fields import STRICT, Count, Probability
from launcher.counts import count_of
from launcher.data.batch import Batch
from launcher.errors import Problem


@dataclass(config=STRICT)
class SequenceLengthWarmup(Algorithm, change_batch=6, acts_on=("tokens",)):
    """Cuts off the end of each sequence.

    From `initial` tokens to those of the task by `increment`, over the fraction `duration` of the run.
    """

    duration: Probability
    initial: Count
    increment: Count

    def steps(self, plan: RunPlan) -> tuple[int, int]:
        """Return the steps of the warmup, and the number of its lengths."""
        return int(plan.total_steps * self.duration), (plan.full_view - self.initial) // self.increment

    def size_after(self, plan: RunPlan, step: int, size: Size) -> Size:
        warmup, lengths = self.steps(plan)
        if not warmup or lengths < 1:
            return size
        length = self.increment * (step // (warmup // lengths))
        return (min(size[0], max(self.initial, min(plan.full_view, length))),)

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        warmup, lengths = self.steps(plan)
        if self.initial > plan.full_view:
            message = f"longer than the sequences; set at most task.length={plan.full_view}"
            yield Problem(message, "initial", self.initial)
        if 0 < warmup < lengths:
            least = -(-(plan.full_view - self.initial) // warmup)
            message = f"has {lengths:,} lengths, more than the {count_of(warmup, 'step')} of the warmup"
            yield Problem(f"{message}; set {least} or more", "increment", self.increment)

    def change_batch(self, batch: Batch, size: Size) -> Transform | None:
        (length,) = self.size_after(self.context.plan, batch.moment.step, size)
        if length == size[0]:
            return None

        def cut(batch: Batch) -> Batch:
            inputs, targets = (tokens[:, :length].contiguous() for tokens in (batch.inputs, batch.targets))
            return replace(batch, inputs=inputs, targets=targets)

        return Transform((), cut)
