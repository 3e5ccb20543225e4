"""The kinds of steps of equal cost, against the real algorithms and by hand."""

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from launcher.algorithms.base import Context
from launcher.algorithms.engine import Engine
from launcher.algorithms.sam import SAM
from launcher.config.compose import compose
from launcher.data.batch import Batch, Moment
from launcher.plan.plan import Plan
from launcher.plan.step_kinds import common_acting, step_kinds, step_samples


def plan(*words: str, samples: int = 640) -> Plan:
    return Plan(compose(["batch_size=64", "schedule.warmup=0ba", *words]).config, 1, samples)


def acting(run: Plan) -> list[tuple[str, ...]]:
    """Return the algorithms that act at each step."""
    by_step = {step: kind.acting for kind, steps in step_kinds(run).items() for step in steps}
    return [by_step[step] for step in range(run.total_steps)]


def test_the_kinds_partition_the_run_and_their_sizes_are_the_plans() -> None:
    hot = plan("recipe=hot", "dataset=shapes", "epochs=10")
    kinds = step_kinds(hot)
    assert sorted(step for steps in kinds.values() for step in steps) == list(range(100))
    assert all(hot.view(step) == kind.view for kind, steps in kinds.items() for step in steps)
    assert sum(len(steps) for kind, steps in kinds.items() if "sam" in kind.acting) == 100 // 5
    assert common_acting(kinds) == ()


@pytest.mark.parametrize(("algorithms", "most"), [("[]", 0.1), ("[ema]", 16)])
def test_steps_are_stored_in_few_bytes_each(algorithms: str, most: float) -> None:
    run = plan("recipe=mild", f"algorithms={algorithms}", "epochs=10", samples=640_000)
    run.view(0)
    tracemalloc.start()
    kinds = step_kinds(run)
    bytes_taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert sum(map(len, kinds.values())) == run.total_steps == 100_000
    assert bytes_taken / run.total_steps < most


def test_the_kinds_of_the_published_form_have_the_sizes_after_colout() -> None:
    ours, published = plan("recipe=hot", "epochs=50"), plan("recipe=hot", "epochs=50", "fidelity=published")
    sizes, after = ({kind.view for kind in step_kinds(run)} for run in (ours, published))
    assert (min(sizes), max(sizes)) == (104, 176)
    assert after == {int(0.95 * (119 if size == 120 else size)) for size in sizes}


def test_sam_doubles_the_gradients_at_its_steps() -> None:
    run = plan("algorithms=[sam]", "algorithms.sam.interval=3", "epochs=2")
    engine = Engine(Context(run, 10))
    model = nn.Linear(2, 2)
    for step, names in enumerate(acting(run)):
        calls = 0

        def gradients(batch: Batch, **_: Any) -> torch.Tensor:
            nonlocal calls
            calls += 1
            loss = model(batch.inputs).square().mean()
            loss.backward()
            return loss.detach()

        moment = Moment(0, 0, step, run.total_steps)
        engine.compute_gradients(Batch(torch.ones(4, 2), torch.zeros(4), np.arange(4), moment), model, gradients)
        assert calls == 1 + ("sam" in names)


def test_selective_backprop_keeps_fewer_samples_at_its_steps() -> None:
    run = plan("algorithms=[selective_backprop]", "algorithms.selective_backprop.scale=1.0", "epochs=4")
    engine = Engine(Context(run, 10))
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 10))
    engine.bind(model, nn.functional.cross_entropy)
    whole = Batch(torch.randint(0, 256, (8, 3, 2, 2)).float(), torch.zeros(8).long(), np.arange(8), Moment(0, 0, 0, 1))
    for step, names in enumerate(acting(run)):
        batch = replace(whole, moment=replace(whole.moment, step=step, total_steps=run.total_steps))
        selected = engine.change_batch(batch, lambda images: images)
        assert len(selected.inputs) == (4 if "selective_backprop" in names else 8), step


def test_layer_freezing_reaches_all_levels() -> None:
    run = plan("algorithms=[layer_freezing]", "algorithms.layer_freezing.start=0.5", "epochs=10")
    levels = acting(run)
    assert set(levels[:51]) == {()}
    assert levels[51] == ("layer_freezing",)
    assert levels[-1] == ("layer_freezing/5",)


def test_few_kinds_are_measured_including_the_extremes() -> None:
    hot = plan("recipe=hot", "dataset=imagenet", "epochs=270", samples=64000)
    chosen = step_samples(step_kinds(hot))
    common = [point.kind.view for point in chosen if not point.kind.acting]
    assert len(common) == 5
    assert (common[0], common[-1]) == (104, 176)
    sam = [point.kind.view for point in chosen if point.kind.acting == ("sam",)]
    assert sam == [104, 176]
    assert all(hot.view(step) == p.kind.view for p in chosen for step in p.steps)


@pytest.mark.parametrize(
    ("name", "key", "first"),
    [("soap", "interval", 0), ("shampoo", "interval", 2), ("schedule_free_adamw", "statistics_interval", 0)],
)
def test_an_optimizer_acts_at_its_steps(name: str, key: str, first: int) -> None:
    run = plan(f"optimizer={name}", f"optimizer.{key}=3", "algorithms=[]", "epochs=1")
    assert acting(run) == [(name,) if step % 3 == first else () for step in range(10)]


@pytest.mark.parametrize(
    "words",
    [
        *(f"algorithms=[{name}]" for name in ("ema", "swa", "sam", "layer_freezing", "backbone_freezing")),
        "algorithms=[selective_backprop,swa]",
        *(f"optimizer={name}" for name in ("soap", "shampoo", "schedule_free_adamw")),
    ],
)
def test_many_steps_at_once_have_the_kinds_of_single_ones(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = plan(words, "epochs=24")
    active = {**run.config.algorithms, run.config.optimizer.name: run.config.optimizer}
    single = [[(name, own.acts_at(run, step)) for name, own in active.items()] for step in range(run.total_steps)]
    named = [[(name, level) for name, level in one if level] for one in single]
    monkeypatch.setattr("launcher.plan.step_kinds._AT_ONCE", 50)
    assert acting(run) == [tuple(n if level == 1 else f"{n}/{level}" for n, level in one) for one in named]


def test_the_steps_are_not_passed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    run, calls = plan("algorithms=[sam]", "algorithms.sam.interval=5", "epochs=10", samples=640_000), []

    def acts_at(self: SAM, plan: Plan, step: int) -> int:
        calls.append(step)
        return (step + 1) % self.interval == 0

    monkeypatch.setattr(SAM, "acts_at", acts_at)
    assert {kind.acting: len(steps) for kind, steps in step_kinds(run).items()} == {(): 80_000, ("sam",): 20_000}
    assert len(calls) < 10


@pytest.mark.parametrize("written", [lambda step: int(step >= 5), lambda step: 1 if step > 4 and step < 99_999 else 0])
def test_an_algorithm_may_be_written_for_single_steps(written: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SAM, "acts_at", lambda self, plan, step: written(step))
    assert acting(plan("algorithms=[sam]", "epochs=1"))[:7] == [()] * 5 + [("sam",)] * 2


def test_an_algorithm_may_act_at_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SAM, "acts_at", lambda self, plan, step: 1)
    assert set(acting(plan("algorithms=[sam]", "epochs=1"))) == {("sam",)}
