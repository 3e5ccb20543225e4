"""Group a run's steps by cost: the kinds of steps, their number, and which to measure."""

from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from launcher.config.declaration import Declaration
from launcher.plan.plan import Plan

_SIZES = 5
_STEPS = 8
_AT_ONCE = 2**18


@dataclass(frozen=True, order=True)
class StepKind:
    """Steps of equal cost: the view of the samples, and the algorithms that act at these steps only.

    An algorithm with several costs appears as `name/N` at its Nth.
    """

    view: int
    acting: tuple[str, ...]


@dataclass(frozen=True)
class StepSample:
    """A kind of step to measure, and up to eight of its steps over the run."""

    kind: StepKind
    steps: tuple[int, ...]


def step_kinds(plan: Plan) -> dict[StepKind, Sequence[int]]:
    """Return a run's steps by kind, cached in the plan: there may be hundreds of thousands."""
    kinds: dict[StepKind, Sequence[int]] | None = vars(plan).get("_step_kinds")
    if kinds is None:
        kinds = vars(plan)["_step_kinds"] = _by_kind(plan)
    return kinds


def _by_kind(plan: Plan) -> dict[StepKind, Sequence[int]]:
    kinds: dict[StepKind, Sequence[int]] = {}
    optimizer = plan.config.optimizer
    active: dict[str, Declaration] = {**plan.config.algorithms, optimizer.name: optimizer}
    periodic = {name: own for name, own in active.items() if own.acts_at(plan, 0) is not None}
    for steps in plan.of_equal_view(range(plan.total_steps)):
        if not periodic:
            kinds[StepKind(plan.view(steps[0]), ())] = steps
            continue
        # note: a list of millions of integers would take hundreds of megabytes
        alike: dict[tuple[int, ...], array[int]] = defaultdict(partial(array, "q"))
        for start in range(0, len(steps), _AT_ONCE):
            parts: dict[tuple[int, ...], Any] = {(): np.array(steps[start : start + _AT_ONCE])}
            for own in periodic.values():
                parts = {
                    (*levels, level): part[at == level]
                    for levels, part in parts.items()
                    for at in [_levels(own, plan, part)]
                    for level in np.unique(at).tolist()
                }
            for levels, part in parts.items():
                alike[levels].frombytes(part.tobytes())
        for levels, steps_alike in alike.items():
            named = [(name, level) for name, level in zip(periodic, levels, strict=True) if level]
            acting = tuple(name if level == 1 else f"{name}/{level}" for name, level in named)
            kinds[StepKind(plan.view(steps[0]), acting)] = steps_alike
    return kinds


def _levels(own: Declaration, plan: Plan, steps: Any) -> np.ndarray:
    """Return what `acts_at` returns for each step, one by one if it is written for single steps."""
    try:
        return np.broadcast_to(own.acts_at(plan, steps), steps.shape)
    except (TypeError, ValueError):
        return np.array([own.acts_at(plan, step) for step in steps.tolist()])


def other_views(plan: Plan) -> list[tuple[int, str, Any, int]]:
    """Return each additional forward pass of an algorithm: its view, that key and its value, and its first step."""
    views: dict[tuple[str, int], tuple[int, str, Any, int]] = {}
    for steps in step_kinds(plan).values():
        for name, values in plan.config.algorithms.items():
            if other := values.other_view(plan, steps[0]):
                key, view = other
                full_key = f"algorithms.{name}.{key}"
                views.setdefault((name, view), (view, full_key, getattr(values, key), steps[0]))
    return list(views.values())


def common_acting(kinds: dict[StepKind, Sequence[int]]) -> tuple[str, ...]:
    """Return the algorithms that act at most steps of the run, usually none."""
    counts: dict[tuple[str, ...], int] = defaultdict(int)
    for kind, steps in kinds.items():
        counts[kind.acting] += len(steps)
    return max(counts, key=lambda acting: counts[acting])


def step_samples(kinds: dict[StepKind, Sequence[int]], sizes: int = _SIZES) -> list[StepSample]:
    """Choose kinds to measure: the commonest at up to `sizes` sizes, others at their smallest and largest."""
    common = common_acting(kinds)
    chosen = []
    for acting in sorted({kind.acting for kind in kinds}, key=lambda acting: (acting != common, acting)):
        own = sorted(kind.view for kind in kinds if kind.acting == acting)
        for size in _spread(own, sizes if acting == common else 2):
            kind = StepKind(size, acting)
            chosen.append(StepSample(kind, tuple(_spread(kinds[kind], _STEPS))))
    return chosen


def _spread(values: Sequence[int], most: int) -> Sequence[int]:
    """Select at most `most` values at equal distances, including the first and last."""
    if len(values) <= most:
        return values
    return [values[round(number * (len(values) - 1) / (most - 1))] for number in range(most)]
