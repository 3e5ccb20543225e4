from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from launcher.config.compose import compose
from launcher.data.batch import Moment
from launcher.errors import UserError
from launcher.plan.checks import check
from launcher.plan.plan import plan_for
from tests.trainers import SMALL, build, state_of, steps


def moved(model: nn.Module) -> None:
    """Change the weights and statistics as a step does."""
    model(torch.randn(5, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))


def test_the_weights_are_those_of_airbench(bound: Callable[..., Any]) -> None:
    """Airbench: from an epoch on, every n steps, average = rho average + (1 - rho) weights, and weights = average.

    rho = decay^n (steps / total)^power; the first time copies the weights, and the run ends with the average.
    """
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    algorithm = bound("lookahead", start="2.5ep", update_interval="0.3ep", decay=0.9, power=1.5)
    algorithm.change_model(model)
    average: dict[str, torch.Tensor] = {}
    for step in range(100):
        moved(model)
        expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        floats = [name for name, tensor in expected.items() if tensor.dtype == torch.float32]
        if step >= 25 and (step + 1) % 3 == 0:
            rho = 0.9**3 * ((step + 1) / 100) ** 1.5
            average = {name: rho * average.get(name, expected[name]) + (1 - rho) * expected[name] for name in floats}
            expected |= average
        if step == 99:
            expected |= average
        algorithm.after_step(model, Moment(0, step // 10, step, 100), torch.tensor(True))
        torch.testing.assert_close(dict(model.state_dict()), expected)


@pytest.mark.parametrize("step", [3, 4, 9])
def test_a_dropped_step_changes_neither_weights_nor_average(bound: Callable[..., Any], step: int) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    algorithm = bound("lookahead", start="0ba", update_interval="2ba")
    algorithm.change_model(model)
    for number in range(step + 1):
        moved(model)
        before = [
            tensor.clone() for tensor in [*model.state_dict().values(), *algorithm.state_dict()["average"].values()]
        ]
        algorithm.after_step(model, Moment(0, 0, number, 100), torch.tensor(number < step))
    after = [*model.state_dict().values(), *algorithm.state_dict()["average"].values()]
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))


def test_an_optimizer_that_averages_itself_is_refused() -> None:
    config = compose([*SMALL, "algorithms=[lookahead]", "optimizer=schedule_free_adamw"]).config
    with pytest.raises(UserError, match="averages the weights itself"):
        check(plan_for(config, 1), {})


def test_a_run_ends_with_the_average() -> None:
    run = build("algorithms=[lookahead]", "algorithms.lookahead.start=0ba", "algorithms.lookahead.update_interval=5ba")
    steps(run, run.plan.total_steps)
    average = run.state_dict()["algorithms"]["lookahead"]["average"]
    weights = run.weights()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in average.items())
    assert len(state_of(run)) > 2 * len(average)
