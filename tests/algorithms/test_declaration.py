"""A method that the launcher has never seen is planned, refused, measured and run from its declaration alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from pydantic.dataclasses import dataclass
from torch import nn

from launcher.algorithms.base import Algorithm, Context
from launcher.algorithms.engine import Engine
from launcher.config.algorithms import Algorithms
from launcher.config.compose import compose
from launcher.config.declaration import AlgorithmConfig, RunPlan
from launcher.config.fields import STRICT, Count
from launcher.data.batch import Moment
from launcher.errors import Problem, UserError
from launcher.measure.estimate import sizes_by_round
from launcher.measure.measurement import EvaluationTimes, Measurement, StepTimes
from launcher.plan.checks import check
from launcher.plan.plan import Plan
from launcher.plan.step_kinds import StepKind, step_kinds, step_samples


@dataclass(frozen=True, config=STRICT)
class WeightNoiseConfig(
    AlgorithmConfig, change_model=35, after_step=15, excludes={"sam": "the noise would hide what SAM looks for"}
):
    interval: Count

    def acts_at(self, plan: RunPlan, step: int) -> int:
        return (step + 1) % self.interval == 0

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        if self.interval > plan.total_steps:
            yield Problem("is longer than the run", "interval", self.interval)


@dataclass(frozen=True, config=STRICT)
class Extended(Algorithms):
    weight_noise: WeightNoiseConfig | None = None


class WeightNoise(Algorithm[WeightNoiseConfig]):
    """Adds one to a layer's weights."""

    def after_step(self, model: nn.Module, moment: Moment, applied: torch.Tensor) -> None:
        if self.values.acts_at(self.context.plan, moment.step):
            with torch.no_grad():
                next(model.parameters()).add_(1.0)


def plan(*words: str, interval: int = 4) -> Plan:
    """40 steps with the method and what the words switch on."""
    config = compose(["epochs=4", "batch_size=64", "schedule.warmup=0ba", *words]).config
    algorithms = Extended(**config.algorithms.active(), weight_noise=WeightNoiseConfig(interval=interval))
    return Plan(replace(config, algorithms=algorithms), 1, 640)


def test_it_stands_in_its_place_in_the_plan() -> None:
    algorithms = plan("algorithms=[ema,stochastic_depth,ghost_batchnorm,swa]").config.algorithms
    assert algorithms.acting("after_step") == ["ema", "weight_noise", "swa"]
    assert algorithms.acting("change_model")[:3] == ["stochastic_depth", "weight_noise", "ghost_batchnorm"]


def test_its_steps_are_a_kind_of_their_own_and_are_measured() -> None:
    run = plan("algorithms=[ema]", "algorithms.ema.update_interval=8ba")
    side = run.train_size
    kinds = {kind: len(steps) for kind, steps in step_kinds(run).items()}
    both = StepKind(side, ("ema", "weight_noise"))
    assert kinds == {StepKind(side, ()): 30, StepKind(side, ("weight_noise",)): 5, both: 5}
    samples = step_samples(step_kinds(run))
    assert {sample.kind for sample in samples} == kinds.keys()
    assert all((step + 1) % 4 == 0 for sample in samples if sample.kind.acting for step in sample.steps)


def test_the_estimate_counts_what_its_steps_cost() -> None:
    run = plan("algorithms=[]")
    seconds = {(): 0.1, ("weight_noise",): 0.3}
    points = [
        StepTimes(run.train_size, list(sample.kind.acting), [seconds[sample.kind.acting]], *load)
        for sample in step_samples(step_kinds(run))
        for load in [([0.01], [0.1]) if not sample.kind.acting else (None, None)]
    ]
    ((cost,),) = sizes_by_round(run, measurement(points))
    assert cost.steps == 40
    assert cost.step_seconds == pytest.approx((30 * 0.1 + 10 * 0.3) / 40)


def measurement(points: list[StepTimes]) -> Measurement:
    rest: dict[str, Any] = {"transfer_seconds": [0.0], "epoch_start_seconds": [0.0], "new_size_seconds": [0.0]}
    return Measurement(
        device="cpu",
        world_size=1,
        workers=0,
        cores=1,
        start_seconds=0.0,
        steps=points,
        first_batch_seconds=0.0,
        evaluation=EvaluationTimes(0.0, [0.0], [0.0], 1),
        save_seconds=[0.0],
        last_save_seconds=0.0,
        **rest,
    )


def test_what_it_excludes_and_its_own_values_are_refused() -> None:
    with pytest.raises(UserError) as caught:
        check(plan("algorithms=[sam]", interval=50), {})
    assert [str(problem) for problem in caught.value.problems] == [
        "algorithms.weight_noise=on: cannot be combined with sam: the noise would hide what SAM looks for "
        "(algorithms.sam=off or algorithms.weight_noise=off)",
        "algorithms.weight_noise.interval=50: is longer than the run",
    ]
    check(plan("algorithms=[ema]"), {})


def test_it_acts_at_the_steps_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("launcher.algorithms.weight_noise")
    module.WeightNoise = WeightNoise  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    run = plan("algorithms=[]")
    engine, model = Engine(Context(run, 10)), nn.Linear(1, 1)
    nn.init.zeros_(model.weight)
    for step in range(run.total_steps):
        engine.after_step(model, Moment(0, 0, step, run.total_steps), torch.tensor(True))
    assert model.weight.item() == 10
