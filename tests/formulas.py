"""Steps of optimizers on a small network with random gradients, compared with formulas."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from launcher.config.choices import OptimizerConfig
from launcher.config.compose import compose
from launcher.optimizers.base import build_optimizer, set_lr

PEAK = 0.1
RATES = tuple(PEAK / step for step in range(1, 6))
# The new weight from weight, gradient, learning rate, number of the step (from 1) and a state.
Formula = Callable[[Tensor, Tensor, float, int, dict[str, Any]], Tensor]


def packaged(name: str, **values: Any) -> OptimizerConfig:
    """Return the packaged values of an optimizer, with some changed."""
    return replace(_values(name), lr=PEAK, scale_lr="off", **values)


@cache
def _values(name: str) -> OptimizerConfig:
    return compose([f"optimizer={name}"]).config.optimizer


def small_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 6, 2), nn.Flatten(), nn.Linear(6, 5))


def set_gradients(model: nn.Module, step: int, scale: float = 1.0) -> None:
    torch.manual_seed(100 + step)
    for parameter in model.parameters():
        parameter.grad = scale * torch.randn_like(parameter)


def assert_follows(
    config: OptimizerConfig, formula: Formula, *, tolerance: float = 1e-5, rates: Sequence[float] = RATES
) -> nn.Module:
    """Check that steps at changing learning rates equal a formula in float64, and return the model."""
    model = small_model()
    built = build_optimizer(config, model, PEAK)
    expected = {name: p.detach().double() for name, p in model.named_parameters()}
    states: dict[str, dict[str, Any]] = {name: {} for name in expected}
    for step, rate in enumerate(rates, 1):
        set_gradients(model, step)
        set_lr(built, rate)
        built.step_number = step - 1
        built.step()
        for name, parameter in model.named_parameters():
            gradient = parameter.grad.double()
            expected[name] = formula(expected[name], gradient, rate, step, states[name])
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach().double(), expected[name], rtol=tolerance, atol=tolerance)
    return model
