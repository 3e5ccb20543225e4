"""LARS and Lion against their papers' formulas and timm's."""

from __future__ import annotations

from typing import Any

import pytest
import timm.optim
import torch
from torch import Tensor

from launcher.optimizers.build import build_optimizer, set_lr
from tests.formulas import PEAK, assert_follows, packaged, set_gradients, small_model


def lars(weight: Tensor, gradient: Tensor, lr: float, step: int, state: dict[str, Any]) -> Tensor:
    """You et al. 2017, algorithm 1, its momentum times lr / last lr as in MLPerf's entries; vectors as with SGD."""
    rate, decay = lr, 0.0
    if weight.ndim > 1:
        decay = 0.01
        rate = lr * 0.02 * weight.norm() / (gradient.norm() + decay * weight.norm() + 1e-3)
    momentum = 0.9 * lr / state.get("last", lr)
    state["last"] = lr
    state["v"] = momentum * state.get("v", 0.0) + rate * (gradient + decay * weight)
    return weight - state["v"]


def test_lars_is_the_papers_with_the_momentum_of_mlperfs_entries() -> None:
    config = packaged("lars", trust_coefficient=0.02, epsilon=1e-3, weight_decay=0.01)
    assert_follows(config, lars)


def test_lars_is_timms() -> None:
    config = packaged("lars", trust_coefficient=0.02, weight_decay=0.01, no_decay="none")
    model, twin = small_model(), small_model()
    ours = build_optimizer(config, model, PEAK)
    theirs = timm.optim.Lars(twin.parameters(), PEAK, momentum=0.9, weight_decay=0.01, trust_coeff=0.02, eps=0.0)
    for step in range(4):
        for network, one in ((model, ours), (twin, theirs)):
            set_gradients(network, step)
            set_lr(one, PEAK / (step + 1))
            one.step()
    torch.testing.assert_close(model.state_dict(), twin.state_dict())


def test_lars_takes_what_has_no_norm_as_it_is() -> None:
    model = small_model()
    torch.nn.init.zeros_(model[0].weight)
    set_gradients(model, 0)
    build_optimizer(packaged("lars", weight_decay=0.01), model, PEAK).step()
    torch.testing.assert_close(model[0].weight.detach(), -PEAK * model[0].weight.grad)


def lion(weight: Tensor, gradient: Tensor, lr: float, step: int, state: dict[str, Any]) -> Tensor:
    """Chen et al. 2023, algorithm 2."""
    average = state.get("m", torch.zeros_like(weight))
    update = torch.sign(0.9 * average + 0.1 * gradient)
    state["m"] = 0.8 * average + 0.2 * gradient
    return weight - lr * (update + (0.3 if weight.ndim > 1 else 0.0) * weight)


def test_lion_is_the_papers() -> None:
    assert_follows(packaged("lion", beta1=0.9, beta2=0.8, weight_decay=0.3), lion)


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_lion_is_timms(decay: float) -> None:
    model, twin = small_model(), small_model()
    ours = build_optimizer(packaged("lion", weight_decay=decay, no_decay="none"), model, PEAK)
    theirs = timm.optim.Lion(twin.parameters(), PEAK, betas=(0.9, 0.99), weight_decay=decay)
    for step in range(4):
        for network, one in ((model, ours), (twin, theirs)):
            set_gradients(network, step)
            one.step()
    torch.testing.assert_close(model.state_dict(), twin.state_dict())
