import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from timm import create_model
from timm.models.resnet import Bottleneck
from torch import Tensor, nn
from torchvision.models import resnet18, resnet50

from launcher.algorithms.stochastic_depth import drop_rates
from launcher.compute import randomness
from launcher.config.compose import compose
from launcher.data.batch import Batch
from launcher.models.build import build_model
from tests.language import MODEL
from tests.trainers import VIT
from tests.transforms import transformed


def test_drop_rates_rise_linearly_to_the_last_block() -> None:
    assert drop_rates(4, 0.2, "linear") == pytest.approx([0.05, 0.1, 0.15, 0.2])
    assert drop_rates(3, 0.2, "uniform") == [0.2, 0.2, 0.2]


def test_the_recipes_of_timm_have_timms_drop_rates() -> None:
    values = compose(["recipe=timm_a1"]).config.algorithms["stochastic_depth"]
    assert values is not None
    theirs = [
        getattr(module.drop_path, "drop_prob", 0.0)
        for module in create_model("resnet50", drop_path_rate=values.drop_rate).modules()
        if isinstance(module, Bottleneck)
    ]
    assert theirs[0] == 0.0 < theirs[1]
    assert drop_rates(16, values.drop_rate, values.distribution) == theirs


class Recorder:
    """Records for which samples each residual branch is not zero."""

    def __init__(self, model: nn.Module):
        self.masks: list[Tensor] = []
        for layer in (model.layer1, model.layer2, model.layer3, model.layer4):
            for block in layer:
                last = block.bn3 if hasattr(block, "bn3") else block.bn2
                last.register_forward_hook(lambda m, i, o: self.masks.append(o.flatten(1).abs().sum(1) > 0))

    def take(self) -> Tensor:
        masks, self.masks = torch.stack(self.masks), []
        return masks


@pytest.mark.parametrize("make", [resnet18, resnet50])
def test_weights_stay_and_whole_branches_are_dropped(
    bound: Callable[..., Any], batch: Callable[..., Any], make: Callable[..., nn.Module]
) -> None:
    model = make(num_classes=10)
    before = copy.deepcopy(model.state_dict())
    algorithm = bound("stochastic_depth", drop_rate=0.5)
    algorithm.change_model(model)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    recorder = Recorder(model)
    loaded = batch(count=16, size=32)
    transformed(algorithm, loaded)
    model(loaded.inputs)
    mask = recorder.take()
    assert mask.shape == ({resnet18: 8, resnet50: 16}[make], 16)
    assert 0 < mask.sum() < mask.numel()


def test_branches_are_dropped_at_their_rates(bound: Callable[..., Any], batch: Callable[..., Any]) -> None:
    model = resnet18(num_classes=10)
    algorithm = bound("stochastic_depth", drop_rate=0.4)
    algorithm.change_model(model)
    loaded = replace(batch(), indices=np.arange(20000))
    transformed(algorithm, loaded)
    measured = torch.stack([drop.mask for drop in algorithm._drops]).mean(1)
    expected = 1 - 0.4 * torch.arange(1, 9) / 8
    torch.testing.assert_close(measured, expected, rtol=0, atol=4 * 0.5 / 20000**0.5)


def test_a_samples_draws_are_the_same_in_micro_batches_passes_and_any_order(
    bound: Callable[..., Any], batch: Callable[..., Any]
) -> None:
    model = resnet18(num_classes=10)
    algorithm = bound("stochastic_depth", drop_rate=0.5)
    algorithm.change_model(model)
    recorder = Recorder(model)
    loaded = batch(size=32)
    transformed(algorithm, loaded)
    model(loaded.inputs)
    whole = recorder.take()
    model(loaded.inputs)
    assert torch.equal(recorder.take(), whole)
    masks = []
    for images in loaded.inputs.chunk(4):
        model(images)
        masks.append(recorder.take())
    assert torch.equal(torch.cat(masks, 1), whole)
    order = np.array([3, 1, 7])
    transformed(algorithm, replace(loaded, inputs=loaded.inputs[order], indices=order))
    model(loaded.inputs[order])
    assert torch.equal(recorder.take(), whole[:, order])
    transformed(algorithm, replace(loaded, moment=batch(step=10).moment))
    model(loaded.inputs)
    assert not torch.equal(recorder.take(), whole)


@pytest.mark.parametrize("scaling", ["training", "evaluation"])
def test_the_keep_rate_scales_branches_in_training_or_evaluation(
    bound: Callable[..., Any], batch: Callable[..., Any], scaling: str
) -> None:
    model = resnet18(num_classes=10)
    algorithm = bound("stochastic_depth", drop_rate=0.5, distribution="uniform", keep_scaling=scaling)
    algorithm.change_model(model)
    block, plain = model.layer1[0], copy.deepcopy(model.layer1[0])
    plain.bn2._forward_hooks.clear()
    images = torch.randn(8, 64, 8, 8)
    transformed(algorithm, batch())
    mask = algorithm._drops[0].mask.view(-1, 1, 1, 1)

    def residual(layer: nn.Module) -> Tensor:
        return layer.bn2(layer.conv2(layer.relu(layer.bn1(layer.conv1(images)))))

    training = torch.relu(residual(plain) * mask * (2 if scaling == "training" else 1) + images)
    torch.testing.assert_close(block(images), training)
    block.eval()
    plain.load_state_dict(block.state_dict())
    plain.eval()
    evaluation = torch.relu(residual(plain) * (1 if scaling == "training" else 0.5) + images)
    torch.testing.assert_close(block(images), evaluation)


def gpt(network: Any, tokens: Tensor, factors: Tensor) -> Tensor:
    """Logits with the branches, in order, multiplied by factors [branches, B]."""
    hidden = network.wte(tokens) + network.wpe.weight[: tokens.shape[1]]
    for block, (attention, mlp) in zip(network.h, factors[:, :, None, None].split(2), strict=True):
        hidden = hidden + attention * block.attn(block.ln_1(hidden), None)
        hidden = hidden + mlp * block.mlp(block.ln_2(hidden))
    return network.ln_f(hidden) @ network.wte.weight.T


def vit(network: Any, images: Tensor, factors: Tensor) -> Tensor:
    hidden: list[Tensor] = []
    with network.blocks[0].register_forward_pre_hook(lambda _, inputs: hidden.extend(inputs)):
        network(images)
    (tokens,) = hidden
    for block, (attention, mlp) in zip(network.blocks, factors[:, :, None, None].split(2), strict=True):
        tokens = tokens + attention * block.attention(block.norm1(tokens))
        tokens = tokens + mlp * block.mlp(block.norm2(tokens))
    return network.head(network.pre_logits(network.norm(tokens).mean(1)).tanh())


@pytest.mark.parametrize("scaling", ["training", "evaluation"])
@pytest.mark.parametrize("formula", [gpt, vit])
def test_both_branches_of_a_transformers_block_are_dropped_by_its_rate(
    formula: Callable[..., Tensor], bound: Callable[..., Any], batch: Callable[..., Batch], scaling: str
) -> None:
    words = [*MODEL, "model.dropout=0"] if formula is gpt else VIT
    config = compose(words).config
    model = build_model(config.model, 7, config.loss, 0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    plain = copy.deepcopy(model)
    algorithm = bound("stochastic_depth", drop_rate=0.6, keep_scaling=scaling)
    algorithm.change_model(model)
    loaded = batch(count=16, step=30)
    inputs = torch.randint(7, (16, 9)) if formula is gpt else loaded.inputs
    transformed(algorithm, replace(loaded, inputs=inputs))
    draws = torch.from_numpy(randomness.uniforms(42, "stochastic_depth", 3, loaded.indices, 4).T)
    keep = 1 - torch.tensor([0.3, 0.3, 0.6, 0.6])[:, None]
    factors = (draws < keep) / (keep if scaling == "training" else 1)
    assert 0 < (factors > 0).sum() < factors.numel()
    torch.testing.assert_close(model(inputs), formula(plain, inputs, factors), rtol=1e-4, atol=1e-5)
    evaluated = formula(plain, inputs, torch.ones(4, 16) if scaling == "training" else keep.expand(4, 16))
    torch.testing.assert_close(model.eval()(inputs), evaluated, rtol=1e-4, atol=1e-5)


def test_parts_of_a_sequence_share_its_draws(bound: Callable[..., Any], batch: Callable[..., Batch]) -> None:
    config = compose(MODEL).config
    model = build_model(config.model, 7, config.loss, 0)
    algorithm = bound("stochastic_depth", drop_rate=0.5)
    algorithm.change_model(model)
    loaded = batch()
    for parts in (1, 3):
        transformed(algorithm, replace(loaded, inputs=torch.zeros(8 * parts, 4, dtype=torch.int64)))
        masks = torch.stack([drop.mask for drop in algorithm._drops])
        if parts == 1:
            whole = masks.clone()
        assert torch.equal(masks, whole[:, torch.arange(8 * parts) // parts])
    assert len({tuple(row) for row in whole.tolist()}) > 1
