"""Optimizers compared with other libraries, and LARS with the formula of its paper in float64."""

import math
from typing import Any

import pytest
import timm.optim
import torch
from torch import Tensor, nn

from launcher.optimizers.base import build_optimizer, set_lr
from tests.formulas import PEAK, assert_follows, packaged, set_gradients, small_model


def lars(weight: Tensor, gradient: Tensor, lr: float, step: int, state: dict[str, Any]) -> Tensor:
    """Compute algorithm 1 of You et al. 2017, with momentum times lr / last lr as in MLPerf; vectors as with SGD."""
    rate, decay = lr, 0.0
    if weight.ndim > 1:
        decay = 0.01
        rate = lr * 0.02 * weight.norm() / (gradient.norm() + decay * weight.norm() + 1.5)
    momentum = 0.9 * lr / state.get("last", lr)
    state["last"] = lr
    state["v"] = momentum * state.get("v", 0.0) + rate * (gradient + decay * weight)
    return weight - state["v"]


def test_lars_follows_its_paper() -> None:
    assert_follows(packaged("lars", trust_coefficient=0.02, epsilon=1.5, weight_decay=0.01), lars)


LARS = {"trust_coefficient": 0.02}, {"momentum": 0.9, "trust_coeff": 0.02, "eps": 0.0}
AT_95 = {"beta1": 0.8, "beta2": 0.95, "epsilon": 0.3}, {"betas": (0.8, 0.95), "eps": 0.3}
# Names here and in the other library, the values of both, and the values under their own names.
PEERS: list[tuple[str, Any, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    *(
        (name, torch.optim.SGD, {"momentum": 0.9, "nesterov": nesterov, "weight_decay": decay}, {}, {})
        for name, decay in (("sgd", 0.01), ("decoupled_sgd", 0.0))
        for nesterov in (False, True)
    ),
    ("adamw", torch.optim.AdamW, {"weight_decay": 0.05}, {"beta1": 0.9, "beta2": 0.99}, {"betas": (0.9, 0.99)}),
    ("nadamw", timm.optim.NAdamW, {"weight_decay": 0.3}, {"beta1": 0.8, "beta2": 0.95}, {"betas": (0.8, 0.95)}),
    *(
        ("radam", torch.optim.RAdam, {"weight_decay": 0.1, "decoupled_weight_decay": decoupled}, *AT_95)
        for decoupled in (False, True)
    ),
    ("lars", timm.optim.Lars, {"weight_decay": 0.01}, *LARS),
    *(
        ("lion", timm.optim.Lion, {"weight_decay": decay}, {"beta1": 0.8, "beta2": 0.95}, {"betas": (0.8, 0.95)})
        for decay in (0.0, 0.3)
    ),
]


@pytest.mark.parametrize(("name", "peer", "values", "own", "others"), PEERS)
def test_an_optimizer_computes_the_same_as_another_library(
    name: str, peer: Any, values: dict[str, Any], own: dict[str, Any], others: dict[str, Any]
) -> None:
    """Also if the device drops steps, as a GPU does: those of libraries are undone there."""
    model, reference = small_model(), small_model()
    ours: Any = build_optimizer(packaged(name, no_decay="none", **values, **own), model, PEAK)
    ours._waits = False
    theirs = peer(reference.parameters(), PEAK, **values, **others)
    # note: RAdam has Adam's denominator from its sixth step on
    for step in range(8):
        for network, one in ((model, ours), (reference, theirs)):
            set_gradients(network, step)
            set_lr(one, PEAK / (step + 1))
            one.step()
        set_gradients(model, step, math.nan)
        ours.found_inf = torch.ones(())
        ours.step()
        ours.found_inf = torch.zeros(())
    torch.testing.assert_close(model.state_dict(), reference.state_dict())


def test_lars_does_not_scale_a_tensor_of_zeros() -> None:
    model = small_model()
    nn.init.zeros_(model[0].weight)
    set_gradients(model, 0)
    build_optimizer(packaged("lars", weight_decay=0.01), model, PEAK).step()
    torch.testing.assert_close(model[0].weight.detach(), -PEAK * model[0].weight.grad)
