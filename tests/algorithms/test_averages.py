"""EMA and SWA."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from launcher.algorithms.ema import decay
from launcher.data.batch import Moment


def after_step(algorithm: Any, model: nn.Module, step: int) -> None:
    """Act after a step as the engine does."""
    if algorithm.acts_at(algorithm.context.plan, step):
        algorithm.after_step(model, Moment(0, 0, step, 100))


def test_the_decay_is_that_of_the_recipes() -> None:
    assert decay(100, 20) == pytest.approx(0.8706, abs=5e-5)
    assert decay(50, 1) ** 50 == pytest.approx(0.5)


def test_the_average_follows_its_recursion_for_weights_and_buffers(bound: Callable[..., Any]) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    algorithm = bound("ema", half_life="0.4ep", update_interval="0.2ep")
    algorithm.change_model(model)
    names = ["0.weight", "1.running_var"]
    expected: dict[str, torch.Tensor] = {}
    for step in range(25):
        assert (algorithm.evaluation_weights() is None) == (step < 2)
        model(torch.randn(5, 3))
        with torch.no_grad():
            model[0].weight.add_(torch.randn(2, 3))
        after_step(algorithm, model, step)
        if step % 2 == 1:
            # note: the first update copies, in Composer 0.7.1 and in torchvision
            for name in names:
                weights = model.state_dict()[name].double().clone()
                expected[name] = 2**-0.5 * expected.get(name, weights) + (1 - 2**-0.5) * weights
    average = algorithm.evaluation_weights()
    for name in names:
        torch.testing.assert_close(average[name].double(), expected[name], rtol=1e-5, atol=1e-6)
    assert average["1.num_batches_tracked"] == 24
    assert set(average) == set(model.state_dict())


def train(algorithm: Any, model: nn.Module, steps: range, weights: dict[int, torch.Tensor]) -> None:
    for step in steps:
        with torch.no_grad():
            model.weight.copy_(torch.full((2, 3), float(step**2)))
        after_step(algorithm, model, step)
        weights[step + 1] = model.weight.detach().clone()


@pytest.mark.parametrize("start", ["0.7dur", "0.65dur", "61ba"])
def test_swa_averages_the_weights_from_its_start_on(bound: Callable[..., Any], start: str) -> None:
    """An average of whole epochs has the weights at their ends, as in Composer."""
    model, weights = nn.Linear(3, 2), {}
    algorithm = bound("swa", start=start, update_interval="1ep")
    algorithm.change_model(model)
    train(algorithm, model, range(69), weights)
    assert algorithm.evaluation_weights() is None
    train(algorithm, model, range(69, 100), weights)
    expected = torch.stack([weights[done] for done in (70, 80, 90, 100)]).mean(0)
    torch.testing.assert_close(algorithm.evaluation_weights()["weight"], expected)


def test_swa_averages_the_weights_at_steps(bound: Callable[..., Any]) -> None:
    values = bound("swa", start="65ba", update_interval="1.5ep")
    plan = bound("swa").context.plan
    assert [step + 1 for step in range(100) if values.acts_at(plan, step)] == [65, 80, 95]


def test_swa_averages_batch_norm_statistics_and_does_not_change_the_model(bound: Callable[..., Any]) -> None:
    model = nn.BatchNorm1d(2)
    algorithm = bound("swa", start="0.7dur", update_interval="1ep")
    algorithm.change_model(model)
    for step in range(69, 100, 10):
        model.running_mean.fill_(float(step))
        after_step(algorithm, model, step)
    torch.testing.assert_close(algorithm.evaluation_weights()["running_mean"], torch.full((2,), 84.0))
    assert torch.equal(model.running_mean, torch.full((2,), 99.0))


def test_swa_does_not_change_the_learning_rate(context: Callable[..., Any]) -> None:
    plain, averaged = context("algorithms=[]").plan, context("algorithms=[swa]").plan
    assert [averaged.lr(step) for step in range(100)] == [plain.lr(step) for step in range(100)]
