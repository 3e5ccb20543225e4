"""What a run will take, integrated over its schedule from what was measured of its steps.

Loading and training overlap. Of a step alone of s seconds and a batch's loading alone of l seconds, both together take
max(s, l) + c min(s, l): c is 0 where the shorter one hides behind the longer, 1 where they compete for the same cores,
and is measured at each size.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from launcher.config.schema import Hardware
from launcher.plan.plan import Plan
from launcher.plan.step_kinds import StepKind, common_acting, step_kinds

CONFIDENCE = 0.9
# Files in the folder that a measurement works in. A request holds the seconds for each thing to measure, and when the
# command was given, in seconds since 1970.
REQUEST, RESULT = "request.json", "result.json"

Rounds = list[float]


@dataclass(frozen=True)
class StepTimes:
    """One kind of step: alone on a batch that is there, and where measured, loading alone and both together."""

    image_size: int
    acting: list[str]
    step_seconds: Rounds
    load_seconds: Rounds | None
    both_seconds: Rounds | None


@dataclass(frozen=True)
class EvaluationTimes:
    """Until the first batch, with and without starting the loader's workers; then a batch of `batches` on a rank."""

    first_start_seconds: float
    start_seconds: Rounds
    batch_seconds: Rounds
    batches: int


@dataclass(frozen=True)
class Measurement:
    """All that an estimate needs; `start_seconds` from the command to the first batch's request.

    `first_batch_seconds` includes starting the loader's workers, `epoch_start_seconds` does not; `new_size_seconds` is
    what the first step at a new size costs more. A save in the middle of a run takes `save_seconds` from it, the last
    one `last_save_seconds`.
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
        """Seconds to copy a batch to the device."""
        return statistics.fmean(self.transfer_seconds)


@dataclass(frozen=True)
class Span:
    """Seconds: the expected value, and the interval that a run's own is in with probability `CONFIDENCE`."""

    seconds: float
    low: float
    high: float


@dataclass(frozen=True)
class SizeCost:
    """The steps at one size: how many, and the mean seconds of loading alone, of a step alone, and of both together."""

    image_size: int
    steps: int
    step_seconds: float
    load_seconds: float
    both_seconds: float


@dataclass(frozen=True)
class Estimate:
    """A run's time by the clocks that it is measured with; `wall` is all of them and the start of the processes."""

    training: Span
    evaluation: Span
    saving: Span
    wall: Span
    start_seconds: float
    evaluations: int
    saves: int
    sizes: list[SizeCost]
    images_per_second: float


@dataclass(frozen=True)
class Price:
    """What the wall time costs on an instance, if it were as fast as the machine measured."""

    hardware: Hardware
    cost: float
    low: float
    high: float


def estimate(plan: Plan, measured: Measurement) -> Estimate:
    """Integrate over the schedule, round by round, so that the rounds give the interval."""
    by_round = sizes_by_round(plan, measured)
    training = [_training(plan, measured, sizes, number) for number, sizes in enumerate(by_round)]
    evaluations, saves = occasions(plan, plan.config.eval_every), occasions(plan, plan.config.checkpoint.every)
    evaluating = _evaluating(measured, evaluations)
    saving = [(saves - 1) * seconds + measured.last_save_seconds for seconds in measured.save_seconds]
    spans = [span(training), span(evaluating), span(saving)]
    images = plan.total_steps * plan.config.batch_size
    return Estimate(
        training=spans[0],
        evaluation=spans[1],
        saving=spans[2],
        wall=_sum(spans, measured.start_seconds),
        start_seconds=measured.start_seconds,
        evaluations=evaluations,
        saves=saves,
        sizes=mean_sizes(by_round),
        images_per_second=images / spans[0].seconds,
    )


def prices(found: Estimate, offers: list[Hardware]) -> list[Price]:
    """The cost on each machine that has a price."""
    hours = [seconds / 3600 for seconds in (found.wall.seconds, found.wall.low, found.wall.high)]
    return [Price(h, *(h.price_per_hour * hour for hour in hours)) for h in offers if h.price_per_hour is not None]


def occasions(plan: Plan, interval: str) -> int:
    """How often something happens that is due at every interval and at the end."""
    return math.ceil(plan.total_steps / plan.every(interval))


def sizes_by_round(plan: Plan, measured: Measurement) -> list[list[SizeCost]]:
    """The cost at each size of the schedule, from each round of the measurement."""
    kinds = step_kinds(plan)
    counts = {kind: len(steps) for kind, steps in kinds.items()}
    rounds = range(len(measured.steps[0].step_seconds))
    return [_sizes(counts, _CostModel(measured, common_acting(kinds), number)) for number in rounds]


def mean_sizes(by_round: list[list[SizeCost]]) -> list[SizeCost]:
    """The cost at each size, the mean of all rounds."""
    means = []
    for rounds in zip(*by_round, strict=True):
        seconds = np.mean([(cost.step_seconds, cost.load_seconds, cost.both_seconds) for cost in rounds], axis=0)
        means.append(SizeCost(rounds[0].image_size, rounds[0].steps, *seconds.tolist()))
    return means


def together(step: float, load: float, competition: float) -> float:
    """Seconds of a step and its loading, overlapped."""
    return max(step, load) + competition * min(step, load)


def competition(step: float, load: float, both: float) -> float:
    """The part of the shorter one that does not hide: what makes `together` give `both`."""
    shorter = min(step, load)
    return (both - max(step, load)) / shorter if shorter > 0 else 0.0


def span(values: list[float]) -> Span:
    """Mean of the rounds, and the interval for one more value of their kind (Student's t, as for a new observation)."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Span(mean, mean, mean)
    from scipy.special import stdtrit  # note: a quarter of a second of import, a fifth of that of scipy.stats

    of_a_new_value = statistics.stdev(values) * math.sqrt(1 + 1 / len(values))
    margin = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)) * of_a_new_value
    return Span(mean, max(0.0, mean - margin), mean + margin)


class _CostModel:
    """Seconds of steps at any size, from one round: piecewise linear in the images' area between the measured."""

    def __init__(self, measured: Measurement, common: tuple[str, ...], number: int):
        at: dict[tuple[str, ...], list[StepTimes]] = {}
        for point in measured.steps:
            at.setdefault(tuple(point.acting), []).append(point)
        base = at[common]
        self._step = _over_area({p.image_size: p.step_seconds[number] for p in base})
        self.load = _over_area({p.image_size: p.load_seconds[number] for p in base if p.load_seconds})
        self._ratios = {
            acting: _over_area({p.image_size: p.step_seconds[number] / self._step(p.image_size) for p in found})
            for acting, found in at.items()
        }
        self.competition = _over_area(
            {
                p.image_size: competition(p.step_seconds[number], self.load(p.image_size), p.both_seconds[number])
                for p in base
                if p.both_seconds
            }
        )

    def step(self, kind: StepKind) -> float:
        """A step alone; what acts at few steps is a factor on the common step."""
        return self._step(kind.image_size) * self._ratios[kind.acting](kind.image_size)


def _over_area(values: dict[int, float]) -> Callable[[int], float]:
    sizes = sorted(values)
    areas, heights = [size**2 for size in sizes], [values[size] for size in sizes]
    return lambda size: float(np.interp(size**2, areas, heights))


def _sizes(counts: dict[StepKind, int], model: _CostModel) -> list[SizeCost]:
    costs = []
    for size in sorted({kind.image_size for kind in counts}):
        here = {kind: count for kind, count in counts.items() if kind.image_size == size}
        count = sum(here.values())
        step = sum(model.step(kind) * steps for kind, steps in here.items()) / count
        load = model.load(size)
        costs.append(SizeCost(size, count, step, load, together(step, load, model.competition(size))))
    return costs


def _training(plan: Plan, measured: Measurement, sizes: list[SizeCost], number: int) -> float:
    steps = sum(cost.steps * cost.both_seconds for cost in sizes)
    starts = measured.first_batch_seconds + (plan.epochs - 1) * measured.epoch_start_seconds[number]
    first, *others = measured.new_size_seconds
    new = first + (len(sizes) - 1) * (statistics.fmean(others) if others else 0.0)
    return steps + starts + new


def _evaluating(measured: Measurement, count: int) -> list[float]:
    found = measured.evaluation
    starts = found.first_start_seconds + (count - 1) * statistics.fmean(found.start_seconds)
    return [starts + count * found.batches * seconds for seconds in found.batch_seconds]


def _sum(spans: list[Span], start: float) -> Span:
    """Independent parts: their margins add up in squares."""
    total = start + sum(part.seconds for part in spans)
    low = math.sqrt(sum((part.seconds - part.low) ** 2 for part in spans))
    high = math.sqrt(sum((part.high - part.seconds) ** 2 for part in spans))
    return Span(total, max(0.0, total - low), total + high)
