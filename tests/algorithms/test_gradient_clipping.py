import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from timm.utils import adaptive_clip_grad
from torch import nn
from torchvision.models import resnet50

from launcher.data.batch import Moment
from tests.launches import Launches

START = Moment(0, 0, 0, 1)


@pytest.fixture
def model() -> nn.Module:
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 4))
    for number, parameter in enumerate(network.parameters()):
        parameter.grad = torch.randn_like(parameter) * 10 ** (number - 3)
    network[3].bias.grad = None
    return network


def gradients(network: nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in network.parameters() if p.grad is not None]


def test_clipping_by_norm_scales_all_gradients(bound: Callable[..., Any], model: nn.Module) -> None:
    before = torch.cat([g.flatten() for g in gradients(model)]).clone()
    bound("gradient_clipping", threshold=0.5).change_gradients(model, START)
    after = torch.cat([g.flatten() for g in gradients(model)])
    torch.testing.assert_close(after, before * 0.5 / before.norm(), rtol=1e-4, atol=1e-6)
    bound("gradient_clipping", threshold=2.0).change_gradients(model, START)
    assert torch.equal(torch.cat([g.flatten() for g in gradients(model)]), after)


def test_clipping_by_value_clamps_each_gradient(bound: Callable[..., Any], model: nn.Module) -> None:
    before = [g.clone() for g in gradients(model)]
    bound("gradient_clipping", kind="value", threshold=0.1).change_gradients(model, START)
    for old, new in zip(before, gradients(model), strict=True):
        assert torch.equal(new, old.clamp(-0.1, 0.1))


def test_adaptive_clipping_is_that_of_timm(bound: Callable[..., Any], model: nn.Module) -> None:
    other = copy.deepcopy(model)
    for parameter, original in zip(other.parameters(), model.parameters(), strict=True):
        parameter.grad = None if original.grad is None else original.grad.clone()
    adaptive_clip_grad(other.parameters(), clip_factor=0.05)
    bound("gradient_clipping", kind="adaptive", threshold=0.05).change_gradients(model, START)
    for ours, theirs in zip(gradients(model), gradients(other), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_adaptive_clipping_launches_one_kernel_per_gradient_and_two_per_matrix(bound: Callable[..., Any]) -> None:
    network = resnet50()
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    matrices = sum(p.ndim > 1 for p in network.parameters())
    with Launches() as launches:
        bound("gradient_clipping", kind="adaptive", threshold=0.05).change_gradients(network, START)
    assert launches.count <= len(gradients(network)) + 2 * matrices + 20
