import copy
import math

import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.optim import param_groups_layer_decay
from torch import nn

from launcher.config.choices import OptimizerConfig
from launcher.config.groups import options
from launcher.optimizers.base import build_optimizer, set_lr
from tests.formulas import PEAK, packaged, set_gradients, small_model


def decoupled(**values) -> OptimizerConfig:
    settings = {"momentum": 0.9, "nesterov": False, "weight_decay": 0.01, "no_decay": "none"}
    return packaged("decoupled_sgd", **{**settings, **values})


class Scalar(nn.Module):
    def __init__(self, value: float):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([[value]], dtype=torch.float64))


@settings(deadline=None)
@given(
    momentum=st.sampled_from([0.0, 0.5, 0.875]),
    nesterov=st.booleans(),
    decay=st.floats(0, 0.5),
    gradients=st.lists(st.floats(-3, 3), min_size=1, max_size=6),
    rates=st.lists(st.floats(0, 1), min_size=6, max_size=6),
)
def test_decoupled_sgd_follows_its_formula_for_a_scalar(momentum, nesterov, decay, gradients, rates):
    model = Scalar(1.5)
    optimizer = build_optimizer(decoupled(momentum=momentum, nesterov=nesterov, weight_decay=decay), model, PEAK)
    weight, buffer = 1.5, None
    for gradient, rate in zip(gradients, rates, strict=False):
        model.w.grad = torch.full_like(model.w, gradient)
        set_lr(optimizer, rate * PEAK)
        optimizer.step()
        buffer = gradient if buffer is None else momentum * buffer + gradient
        direction = gradient + momentum * buffer if nesterov else buffer
        weight = weight * (1 - rate * decay) - rate * PEAK * (direction if momentum else gradient)
    assert model.w.item() == pytest.approx(weight, rel=1e-12, abs=1e-12)


def test_parameters_without_gradients_stay_and_start_their_momentum_later():
    model = small_model()
    frozen = model[0].weight
    before = frozen.detach().clone()
    optimizer = build_optimizer(decoupled(weight_decay=0.0), model, PEAK)
    set_gradients(model, 0)
    frozen.grad = None
    optimizer.step()
    assert torch.equal(frozen, before)
    set_gradients(model, 1)
    optimizer.step()
    torch.testing.assert_close(frozen.detach(), before - PEAK * frozen.grad)


@pytest.mark.parametrize(("gradient_scale", "max_grad_norm"), [(10.0, 1.5), (1e-3, 1.5), (10.0, None)])
def test_lamb_follows_its_formula(gradient_scale, max_grad_norm):
    """Algorithm 2 of You et al. 2020 with a clipped global norm; vectors are neither decayed nor rescaled."""
    model = small_model()
    parameters = dict(model.named_parameters())
    expected = {name: parameter.detach().clone().double() for name, parameter in parameters.items()}
    first = {name: torch.zeros_like(value) for name, value in expected.items()}
    second = copy.deepcopy(first)
    config = packaged("lamb", beta1=0.8, epsilon=1e-6, max_grad_norm=max_grad_norm, weight_decay=0.02)
    optimizer = build_optimizer(config, model, PEAK)
    for step in range(1, 4):
        set_gradients(model, step, gradient_scale)
        gradients = {name: parameter.grad.double() for name, parameter in parameters.items()}
        norm = math.sqrt(sum((g**2).sum().item() for g in gradients.values()))
        clip = max(1.0, norm / max_grad_norm) if max_grad_norm else 1.0
        optimizer.step()
        for name, weight in expected.items():
            gradient = gradients[name] / clip
            first[name] = 0.8 * first[name] + 0.2 * gradient
            second[name] = 0.999 * second[name] + 0.001 * gradient**2
            update = first[name] / (1 - 0.8**step) / ((second[name] / (1 - 0.999**step)).sqrt() + 1e-6)
            if weight.ndim > 1:
                update = update + 0.02 * weight
                update = update * weight.norm() / update.norm()
            expected[name] = weight - PEAK * update
    for name, weight in expected.items():
        torch.testing.assert_close(parameters[name].detach().double(), weight, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("name", options("optimizer"))
def test_the_backbone_learns_with_a_fraction_of_the_rate(name, on_device):
    """The last layer learns with the whole rate, all others as in a run with the smaller rate."""

    def trained(factor: float, scale: float) -> dict[str, torch.Tensor]:
        model = small_model()
        built = build_optimizer(packaged(name, backbone_lr=factor), model, PEAK * scale)
        for step in range(1, 4):
            set_gradients(model, step)
            rate = PEAK * scale / step
            set_lr(built, torch.tensor(rate) if on_device else rate)
            built.step_number = step - 1
            built.step()
        return model.state_dict()

    weights, whole, quarter = trained(0.25, 1.0), trained(1.0, 1.0), trained(1.0, 0.25)
    assert not torch.equal(whole["0.weight"], quarter["0.weight"])
    for key, tensor in weights.items():
        torch.testing.assert_close(tensor, (whole if key.startswith("4.") else quarter)[key], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "architecture", ["test_vit", "test_convnext", "test_resnet", "test_efficientnet", "poolformer_s12"]
)
def test_layer_decay_is_timms(architecture: str) -> None:
    model = timm.create_model(architecture)
    theirs = param_groups_layer_decay(model, 0.05, layer_decay=0.5, weight_decay_exclude_1d=False)
    expected = {parameter: group["lr_scale"] for group in theirs for parameter in group["params"]}
    built = build_optimizer(packaged("adamw", layer_decay=0.5), model, PEAK)
    ours = {parameter: group.get("lr_factor", 1.0) for group in built.param_groups for parameter in group["params"]}
    assert len(set(ours.values())) > 2
    assert ours == expected


def test_layer_decay_multiplies_the_fraction_of_the_backbone_block_by_block() -> None:
    model = small_model()
    built = build_optimizer(packaged("adamw", layer_decay=0.5, backbone_lr=0.1), model, PEAK)
    factors = {parameter: group.get("lr_factor", 1.0) for group in built.param_groups for parameter in group["params"]}
    blocks = [name.split(".")[0] for name, _ in model.named_parameters()]
    depths = {block: depth for depth, block in enumerate(reversed(dict.fromkeys(blocks)))}
    for (name, parameter), block in zip(model.named_parameters(), blocks, strict=True):
        assert factors[parameter] == pytest.approx(0.5 ** depths[block] * (0.1 if depths[block] else 1)), name


def test_the_backbones_rate_stays_at_its_address():
    """Captured steps read it there."""
    built = build_optimizer(packaged("sgd", backbone_lr=0.5), small_model(), PEAK)
    set_lr(built, torch.tensor(0.1))
    before = [group["lr"].data_ptr() for group in built.param_groups if "lr_factor" in group]
    set_lr(built, torch.tensor(0.2))
    rates = [group["lr"] for group in built.param_groups if "lr_factor" in group]
    assert [rate.data_ptr() for rate in rates] == before
    assert all(rate == pytest.approx(0.1) for rate in rates)
