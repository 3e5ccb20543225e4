from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torchvision.models import resnet18


def test_each_channel_is_scaled_by_a_gate_of_the_means(bound: Callable[..., Any]) -> None:
    conv = nn.Conv2d(128, 160, 1, bias=False)
    images = torch.randn(3, 128, 5, 5)
    plain = conv(images)
    bound("squeeze_excite", latent_channels=16).change_model(nn.Sequential(conv))
    first, second = conv.squeeze_excite.squeeze.weight, conv.squeeze_excite.excite.weight
    assert first.shape == (16, 160)
    hidden = torch.clamp(plain.flatten(2).mean(2) @ first.T, min=0)
    gate = 1 / (1 + torch.exp(-hidden @ second.T))
    torch.testing.assert_close(conv(images), torch.einsum("bchw,bc->bchw", plain, gate), rtol=1e-4, atol=1e-5)


def test_convolutions_need_enough_inputs_and_outputs(bound: Callable[..., Any]) -> None:
    model = nn.Sequential(nn.Conv2d(127, 128, 1), nn.Conv2d(128, 127, 1), nn.Conv2d(128, 128, 1))
    bound("squeeze_excite").change_model(model)
    assert [len(list(conv.children())) for conv in model] == [0, 0, 1]
    smaller = nn.Sequential(nn.Conv2d(31, 32, 1), nn.Conv2d(32, 32, 1))
    bound("squeeze_excite", min_channels=32).change_model(smaller)
    assert [len(list(conv.children())) for conv in smaller] == [0, 1]


def test_initial_weights_only_depend_on_the_seed_and_the_name(bound: Callable[..., Any]) -> None:
    models = [resnet18(num_classes=10) for _ in range(3)]
    plain = set(models[0].state_dict())
    for model, seed in zip(models, (1, 1, 2), strict=True):
        before = torch.get_rng_state()
        bound("squeeze_excite", "seed=" + str(seed)).change_model(model)
        assert torch.equal(before, torch.get_rng_state())
    first, same, other = (model.state_dict() for model in models)
    added = [name for name in first if name not in plain]
    assert plain < set(first)
    assert len(added) == 2 * 13  # convolutions of at least 128 inputs and outputs
    assert all(torch.equal(first[name], same[name]) for name in added)
    assert not any(torch.equal(first[name], other[name]) for name in added)
