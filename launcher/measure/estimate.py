"""Estimate the time of a run: the mean step of each view times its steps, evaluations, checkpoints and the start.

Loading and training overlap. Both together take the longer one, and the seconds of the shorter one that are not hidden,
which are measured.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import astuple, dataclass

import numpy as np

from launcher.config.hardware import Hardware
from launcher.plan.plan import Plan
from launcher.plan.step_kinds import StepKind, common_acting, step_kinds

# Files in the folder of a measurement. A request has the seconds for each part, and the time of the command in seconds
# since 1970.
REQUEST, RESULT = "request.json", "result.json"

Rounds = list[float]


@dataclass(frozen=True)
class StepTimes:
    """One kind of step: alone on a loaded batch, and if measured, loading alone and both together."""

    view: int
    acting: list[str]
    step_seconds: Rounds
    load_seconds: Rounds | None
    both_seconds: Rounds | None


@dataclass(frozen=True)
class EvaluationTimes:
    """Seconds to the first batch, with and without starting workers, and per batch of the `batches` of a rank."""

    first_start_seconds: float
    start_seconds: Rounds
    batch_seconds: Rounds
    batches: int


@dataclass(frozen=True)
class Measurement:
    """The input of an estimate; `start_seconds` is the time from the command to the request of the first batch.

    `first_batch_seconds` includes starting the loader's workers, `epoch_start_seconds` does not; `new_size_seconds` is
    the extra time of the first step at a new size. A checkpoint interrupts training for `save_seconds`, the last one
    for `last_save_seconds`.
    """

    device: str
    world_size: int
    workers: int
    cores: int
    start_seconds: float
    steps: list[StepTimes]
    transfer_seconds: Rounds
    first_batch_seconds: float
    epoch_start_seconds: Rounds
    new_size_seconds: Rounds
    evaluation: EvaluationTimes
    save_seconds: Rounds
    last_save_seconds: float

    @property
    def mean_transfer(self) -> float:
        """Return the mean seconds to copy a batch to the device."""
        return statistics.fmean(self.transfer_seconds)


@dataclass(frozen=True)
class Span:
    """Seconds: the mean of measured rounds and the least and the most of them, or a prediction with its range."""

    seconds: float
    low: float
    high: float

    def values(self, unit: float = 1) -> dict[str, float]:
        """Return it in units of so many seconds, as JSON has it."""
        return {"value": self.seconds / unit, "low": self.low / unit, "high": self.high / unit}


@dataclass(frozen=True)
class SizeCost:
    """The number of steps at one size, and the mean seconds of a step alone, loading alone, and both together."""

    view: int
    steps: int
    step_seconds: float
    load_seconds: float
    both_seconds: float


@dataclass(frozen=True)
class Estimate:
    """The time of a run by clock; `wall` is their sum and the start of the processes."""

    training: Span
    evaluation: Span
    saving: Span
    wall: Span
    start_seconds: float
    evaluations: int
    checkpoints: int
    sizes: list[SizeCost]
    samples_per_second: float


@dataclass(frozen=True)
class Price:
    """The cost of the wall-clock time on an instance as fast as the measured machine."""

    hardware: Hardware
    cost: float
    low: float
    high: float


def estimate(plan: Plan, measured: Measurement) -> Estimate:
    """Estimate the run by each round."""
    by_round = sizes_by_round(plan, measured)
    training = [_training(plan, measured, sizes, number) for number, sizes in enumerate(by_round)]
    evaluations, checkpoints = occasions(plan, plan.config.eval_every), occasions(plan, plan.config.checkpoint.every)
    evaluating = _evaluating(measured, evaluations)
    saving = [(checkpoints - 1) * seconds + measured.last_save_seconds for seconds in measured.save_seconds]
    spans = [span(training), span(evaluating), span(saving)]
    images = plan.total_steps * plan.batch_size
    return Estimate(
        training=spans[0],
        evaluation=spans[1],
        saving=spans[2],
        wall=Span(*(measured.start_seconds + sum(part) for part in zip(*map(astuple, spans), strict=True))),
        start_seconds=measured.start_seconds,
        evaluations=evaluations,
        checkpoints=checkpoints,
        sizes=mean_sizes(by_round),
        samples_per_second=images / spans[0].seconds,
    )


def prices(estimated: Estimate, offers: list[Hardware]) -> list[Price]:
    """Return the cost on each machine that has a price."""
    wall = estimated.wall
    hours = [seconds / 3600 for seconds in (wall.seconds, wall.low, wall.high)]
    return [Price(h, *(h.price_per_hour * hour for hour in hours)) for h in offers if h.price_per_hour is not None]


def occasions(plan: Plan, interval: str) -> int:
    """Return how often an event at every interval and at the end occurs."""
    return math.ceil(plan.total_steps / plan.every(interval))


def sizes_by_round(plan: Plan, measured: Measurement) -> list[list[SizeCost]]:
    """Return the cost at each size of the schedule, by round of the measurement."""
    kinds = step_kinds(plan)
    counts = {kind: len(steps) for kind, steps in kinds.items()}
    rounds = range(len(measured.steps[0].step_seconds))
    return [_sizes(counts, measured, common_acting(kinds), number) for number in rounds]


def mean_sizes(by_round: list[list[SizeCost]]) -> list[SizeCost]:
    """Return the mean cost over the rounds at each size."""
    means = []
    for rounds in zip(*by_round, strict=True):
        seconds = np.mean([(cost.step_seconds, cost.load_seconds, cost.both_seconds) for cost in rounds], axis=0)
        means.append(SizeCost(rounds[0].view, rounds[0].steps, *seconds.tolist()))
    return means


def span(values: list[float]) -> Span:
    return Span(statistics.fmean(values), min(values), max(values))


def _over_area(values: dict[int, float]) -> Callable[[int], float]:
    views = sorted(values)
    areas, heights = [view**2 for view in views], [values[view] for view in views]
    return lambda view: float(np.interp(view**2, areas, heights))


def _sizes(counts: dict[StepKind, int], measured: Measurement, common: tuple[str, ...], number: int) -> list[SizeCost]:
    """Return the cost at each size from one round, linear in the area of the images between measured ones."""
    points = [point for point in measured.steps if tuple(point.acting) == common]
    load = _over_area({p.view: p.load_seconds[number] for p in points if p.load_seconds})
    steps: dict[tuple[str, ...], dict[int, float]] = defaultdict(dict)
    for point in measured.steps:
        steps[tuple(point.acting)][point.view] = point.step_seconds[number]
    alone = {acting: _over_area(of) for acting, of in steps.items()}
    both = {p.view: p.both_seconds[number] for p in points if p.both_seconds}
    extra = _over_area({view: seconds - max(steps[common][view], load(view)) for view, seconds in both.items()})
    costs = []
    for view in sorted({kind.view for kind in counts}):
        here = {kind.acting: count for kind, count in counts.items() if kind.view == view}
        count = sum(here.values())
        mean = sum(alone[acting](view) * number for acting, number in here.items()) / count
        costs.append(SizeCost(view, count, mean, load(view), max(mean, load(view)) + extra(view)))
    return costs


def _training(plan: Plan, measured: Measurement, sizes: list[SizeCost], number: int) -> float:
    steps = sum(cost.steps * cost.both_seconds for cost in sizes)
    starts = measured.first_batch_seconds + (plan.epochs - 1) * measured.epoch_start_seconds[number]
    first, *others = measured.new_size_seconds
    new = first + (len(sizes) - 1) * (statistics.fmean(others) if others else 0.0)
    return steps + starts + new


def _evaluating(measured: Measurement, count: int) -> list[float]:
    times = measured.evaluation
    starts = times.first_start_seconds + (count - 1) * statistics.fmean(times.start_seconds)
    return [starts + count * times.batches * seconds for seconds in times.batch_seconds]
