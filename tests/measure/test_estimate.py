"""The integral over the schedule, compared with sums over steps, and its range."""

import json
from dataclasses import asdict, replace

import pytest
from pydantic import TypeAdapter

from launcher.config.compose import compose
from launcher.measure.estimate import (
    EvaluationTimes,
    Measurement,
    Span,
    estimate,
    occasions,
    prices,
    span,
)
from launcher.plan.plan import Plan
from launcher.plan.step_kinds import StepKind, step_kinds
from tests import measurements


def plan(*words: str) -> Plan:
    base = ["dataset=shapes", "batch_size=64", "schedule.warmup=1ep", "epochs=10"]
    return Plan(compose([*words, *base]).config, 1, 4000)


def cost(kind: StepKind) -> float:
    """Return a step time in proportion to the area; SAM doubles it."""
    return kind.view**2 * 1e-4 * (2 if "sam" in kind.acting else 1)


def measured(run: Plan, load: float, shared: float = 0.0) -> Measurement:
    return measurements.measured(
        run,
        cost,
        load,
        shared=shared,
        rounds=3,
        start_seconds=3.0,
        first_batch_seconds=2.0,
        epoch_start_seconds=[0.5] * 3,
        new_size_seconds=[0.1, 0.1],
        evaluation=EvaluationTimes(1.0, [0.25], [0.2, 0.2], 4),
        save_seconds=[0.3, 0.3],
        last_save_seconds=1.0,
    )


@pytest.mark.parametrize("recipe", ["baseline", "mild", "medium", "hot"])
def test_the_time_of_a_step_bound_run_is_the_sum_of_its_steps(recipe: str) -> None:
    run = plan(f"recipe={recipe}")
    result = estimate(run, measured(run, load=1e-6))
    steps = sum(cost(kind) * len(steps) for kind, steps in step_kinds(run).items())
    sizes = len({run.view(step) for step in range(run.total_steps)})
    starts = 2.0 + (run.epochs - 1) * 0.5 + 0.1 + (sizes - 1) * 0.1
    assert result.training.seconds == pytest.approx(steps + starts, rel=1e-6)
    assert result.training.low == pytest.approx(result.training.high)


def test_the_time_of_a_data_bound_run_is_the_loading_time() -> None:
    run = plan("recipe=mild")
    result = estimate(run, measured(run, load=5.0))
    assert result.training.seconds == pytest.approx(run.total_steps * 5.0, rel=0.01)
    assert result.samples_per_second == pytest.approx(64 / 5.0, rel=0.01)


def test_loading_on_the_cores_of_the_step_adds_its_time() -> None:
    run = plan("recipe=mild")
    alone, shared = (estimate(run, measured(run, load=0.01, shared=c)).training.seconds for c in (0.0, 1.0))
    assert shared - alone == pytest.approx(run.total_steps * 0.01, rel=1e-6)


def test_the_clocks_equal_sums_by_hand() -> None:
    run = plan("recipe=mild")
    result = estimate(run, measured(run, load=1e-6))
    assert result.evaluations == 10
    assert result.evaluation.seconds == pytest.approx(1.0 + 9 * 0.25 + 10 * 4 * 0.2)
    assert result.saving.seconds == pytest.approx((result.checkpoints - 1) * 0.3 + 1.0)
    parts = result.training.seconds + result.evaluation.seconds + result.saving.seconds
    assert result.wall.seconds == pytest.approx(parts + 3.0)
    assert sum(size.steps for size in result.sizes) == run.total_steps


def test_an_evaluation_at_the_end_is_counted_once() -> None:
    run = plan("recipe=mild", "eval_every=4ep")
    assert occasions(run, "4ep") == 3
    assert occasions(run, "5ep") == 2
    assert occasions(run, "100ep") == 1


def test_the_range_is_that_of_the_rounds() -> None:
    assert span([1.0, 2.0, 4.5]) == Span(2.5, 1.0, 4.5)


def test_prices_are_for_the_wall_clock_time_of_machines_with_a_price() -> None:
    run = plan("recipe=mild")
    result = estimate(run, measured(run, load=1e-6))
    free, dear = (compose([f"hardware={name}"]).config.hardware for name in ("this_machine", "p4d_24xlarge"))
    (offer,) = prices(result, [free, dear])
    assert offer.hardware == dear
    assert offer.cost == pytest.approx(dear.price_per_hour * result.wall.seconds / 3600)
    assert prices(result, [replace(free, price_per_hour=0.0)])[0].cost == 0


def test_a_measurement_reads_back_as_written() -> None:
    before = measured(plan("recipe=hot"), load=0.1)
    assert TypeAdapter(Measurement).validate_json(json.dumps(asdict(before))) == before
