"""Measure the parts of a step on one rank, with a device synchronization after each part."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from launcher.algorithms.base import Algorithm, Transform
from launcher.measure.estimate import Measurement, mean_sizes, sizes_by_round
from launcher.measure.probes import WARMUP_STEPS, write_result
from launcher.measure.step_timer import StepTimer, agreed_count
from launcher.plan.plan import Plan
from launcher.plan.step_kinds import StepKind, StepSample, step_kinds, step_samples
from launcher.training.trainer import Trainer

# The part for gradients, without the forward passes.
GRADIENT = "backward"


@dataclass
class _Part:
    """A timed part; `whole` includes the parts inside it."""

    name: str
    whole: bool
    entered: set[str] = field(default_factory=set)


class Splitter:
    """Sum the seconds of each part; a part inside another one counts only for itself.

    A part that is entered again within the same outer part (a second gradient) counts as a whole for the outer one.
    """

    def __init__(self, synchronize: Callable[[], None], now: Callable[[], float] = time.perf_counter):
        self.seconds: dict[str, float] = defaultdict(float)
        self._synchronize, self._now = synchronize, now
        self._parts: list[_Part] = []
        self._since = now()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time in this block for a part."""
        self._switch()
        outer = self._parts[-1] if self._parts else _Part("", whole=False)
        again = name == GRADIENT and name in outer.entered
        self._parts.append(_Part(outer.name, whole=True) if outer.whole or again else _Part(name, whole=False))
        outer.entered.add(name)
        try:
            yield
        finally:
            self._switch()
            self._parts.pop()

    def wrap(self, owner: Any, method: str, name: str) -> None:
        """Count the time of an object's method for a part."""
        setattr(owner, method, self.timed(getattr(owner, method), name))

    def timed(self, inner: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return a function whose time counts for a part."""

        def counted(*arguments: Any, **named: Any) -> Any:
            with self.part(name):
                return inner(*arguments, **named)

        return counted

    def _switch(self) -> None:
        self._synchronize()
        now = self._now()
        if self._parts:
            self.seconds[self._parts[-1].name] += now - self._since
        self._since = now


def time_parts(scratch: Path) -> None:
    """Split the steps of the scratch folder's config into mean seconds of each part of a step."""
    write_result(scratch, lambda run, seconds, _: split(run, seconds))


def split(run: Trainer, seconds: float) -> dict[str, float]:
    """Return the mean seconds of a step's parts over the schedule, on a batch that is already loaded.

    An algorithm's part is its own time at the points of the loop; its changes to the model are in forward and backward.
    A second gradient belongs to the algorithm that computes it.
    """
    timer = StepTimer(run)
    splitter = Splitter(timer.synchronize)
    # note: the images of the last step have full size
    batch = next(iter(run.loaders.train.epoch(*divmod(run.plan.total_steps - 1, run.plan.steps_per_epoch))))
    kinds = step_kinds(run.plan)
    shares = weights(kinds, step_samples(kinds))
    counts = {}
    for sample in shares:
        timer.mean(WARMUP_STEPS, partial(timer.step, batch, sample))
        counts[sample] = agreed_count(seconds, timer.mean(1, partial(timer.step, batch, sample)))
    _instrument(run, splitter)
    means: dict[str, float] = defaultdict(float)
    for sample, share in shares.items():
        splitter.seconds.clear()
        for number in range(counts[sample]):
            with splitter.part("rest"):
                timer.step(batch, sample, number)
        for name, spent in splitter.seconds.items():
            means[name] += share * spent / counts[sample]
    return dict(means)


def weights(kinds: dict[StepKind, Sequence[int]], chosen: list[StepSample]) -> dict[StepSample, float]:
    """Return the fraction of the run for each measured sample: the kinds with the nearest image size."""
    total = sum(map(len, kinds.values()))
    weights = dict.fromkeys(chosen, 0.0)
    for kind, steps in kinds.items():
        candidates = [sample for sample in chosen if sample.kind.acting == kind.acting]
        nearest = min(candidates, key=lambda sample: abs(sample.kind.view - kind.view))
        weights[nearest] += len(steps) / total
    return weights


def _instrument(run: Trainer, splitter: Splitter) -> None:
    """Wrap the step's parts; call after the warmup."""
    step = run.train_step
    splitter.wrap(step.task, "prepare", "prepare")
    splitter.wrap(step, "gradients", GRADIENT)
    splitter.wrap(step.objective, "forward", "forward")
    splitter.wrap(step.objective, "loss", "loss")
    splitter.wrap(step.optimizer, "step", "optimizer")
    for name, algorithm in step.engine.active.items():
        for point in ("before_step", "change_batch", "choose", "compute_gradients", "change_gradients", "after_step"):
            if getattr(type(algorithm), point, None) is not getattr(Algorithm, point, None):
                splitter.wrap(algorithm, point, name)
        algorithm.change_batch = partial(_timed, splitter, name, algorithm.change_batch)  # type: ignore[method-assign]


def _timed(splitter: Splitter, name: str, change: Callable[..., Transform | None], *arguments: Any) -> Transform | None:
    """Make an algorithm's transform, and count the time of its application for the same algorithm."""
    transform = change(*arguments)
    return transform and replace(transform, apply=splitter.timed(transform.apply, name))


def waiting(plan: Plan, measured: Measurement) -> dict[str, float]:
    """Return the mean seconds that a step waits for loading and for copies that are not hidden."""
    sizes = mean_sizes(sizes_by_round(plan, measured))
    waited = sum(size.steps * max(0.0, size.both_seconds - size.step_seconds) for size in sizes) / plan.total_steps
    transfer = measured.mean_transfer
    return {"data": max(0.0, waited - transfer), "transfer": min(transfer, waited)}
