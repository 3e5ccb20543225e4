from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from launcher.data.batch import Moment


def train(algorithm: Any, model: nn.Module, steps: range, seen: dict[int, torch.Tensor]) -> None:
    for step in steps:
        with torch.no_grad():
            model.weight.copy_(torch.full((2, 3), float(step**2)))
        algorithm.after_step(model, Moment(0, 0, step, 100), torch.tensor(True))
        seen[step + 1] = model.weight.detach().clone()


def test_plain_mean_of_the_weights_from_the_start_on(bound: Callable[..., Any]) -> None:
    model, seen = nn.Linear(3, 2), {}
    algorithm = bound("swa", start="0.7dur", update_interval="1ep")
    algorithm.change_model(model)
    train(algorithm, model, range(69), seen)
    assert algorithm.evaluation_weights() is None
    train(algorithm, model, range(69, 100), seen)
    expected = torch.stack([seen[done] for done in (70, 80, 90, 100)]).mean(0)
    torch.testing.assert_close(algorithm.evaluation_weights()["weight"], expected)


def test_statistics_of_batch_norm_are_averaged_and_the_model_stays_as_it_was(bound: Callable[..., Any]) -> None:
    model = nn.BatchNorm1d(2)
    algorithm = bound("swa", start="0.7dur", update_interval="1ep")
    algorithm.change_model(model)
    for step in range(69, 100, 10):
        model.running_mean.fill_(float(step))
        algorithm.after_step(model, Moment(0, 0, step, 100), torch.tensor(True))
    torch.testing.assert_close(algorithm.evaluation_weights()["running_mean"], torch.full((2,), 84.0))
    assert torch.equal(model.running_mean, torch.full((2,), 99.0))


def test_the_learning_rate_stays_the_schedules(context: Callable[..., Any]) -> None:
    plain, averaged = context("algorithms=[]").plan, context("algorithms=[swa]").plan
    assert [averaged.lr(step) for step in range(100)] == [plain.lr(step) for step in range(100)]
