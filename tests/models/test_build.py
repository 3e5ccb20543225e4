import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torchvision.models import get_model

from launcher.config.compose import compose
from launcher.models.build import build_model
from launcher.models.resnet import TorchvisionModel

CROSS_ENTROPY = compose([]).config.loss
BCE = compose(["loss=bce"]).config.loss


def settings(**values) -> TorchvisionModel:
    return replace(compose(["model=resnet18"]).config.model, **values)


def batchnorms(network: nn.Module) -> dict[str, nn.BatchNorm2d]:
    return {name: module for name, module in network.named_modules() if isinstance(module, nn.BatchNorm2d)}


@pytest.mark.parametrize("architecture", ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"])
def test_parameters_are_torchvisions(architecture):
    with torch.device("meta"):
        expected = get_model(architecture, weights=None, num_classes=7)
        built = build_model(settings(architecture=architecture), 7, CROSS_ENTROPY, 0)
    shapes = {name: (tensor.shape, tensor.dtype) for name, tensor in built.state_dict().items()}
    assert shapes == {name: (tensor.shape, tensor.dtype) for name, tensor in expected.state_dict().items()}


@pytest.mark.parametrize("initialization", ["kaiming_normal", "torchvision"])
def test_weights_are_a_function_of_the_seed_alone(initialization):
    model = settings(initialization=initialization)
    torch.manual_seed(1)
    state_before = torch.get_rng_state()
    first = build_model(model, 10, CROSS_ENTROPY, 42).state_dict()
    assert torch.equal(torch.get_rng_state(), state_before)
    torch.manual_seed(2)
    second = build_model(model, 10, CROSS_ENTROPY, 42).state_dict()
    other = build_model(model, 10, CROSS_ENTROPY, 43).state_dict()
    assert all(torch.equal(weight, second[name]) for name, weight in first.items())
    assert not torch.equal(first["conv1.weight"], other["conv1.weight"])
    assert not torch.equal(first["fc.weight"], other["fc.weight"])
    assert not torch.equal(first["layer1.0.conv1.weight"], first["layer1.0.conv2.weight"])


@pytest.mark.parametrize(
    ("words", "first"),
    [
        (["model=resnet50"], "conv1.weight"),
        (["model=resnet18", "model.initialization=torchvision"], "conv1.weight"),
        (["model=timm", "model.architecture=convnext_atto"], "stem.0.weight"),
        (["model=vit"], "embedding.weight"),
        (["model=unet", "model.levels=2"], "downsamples.0.conv1.conv.weight"),
    ],
)
def test_only_the_first_layer_depends_on_the_channels_of_images(words, first):
    model = compose(words).config.model
    three, default, five = (
        build_model(model, 4, CROSS_ENTROPY, 1, *channels).state_dict() for channels in ([3], [], [5])
    )
    assert all(torch.equal(weight, default[name]) for name, weight in three.items())
    assert five[first].shape[1] == 5
    shapes = {name for name, weight in five.items() if weight.shape != three[name].shape}
    # note: the shortcut of a U-Net has the input too
    assert first in shapes
    assert shapes <= {first, "downsamples.0.downsample.conv.weight"}
    # the scale of the library, whose fan-in or fan-out has the new channels
    fan_in = words[0] not in ("model=resnet18", "model=timm")
    expected = three[first].std().item() * (3 / 5 if fan_in else 1) ** 0.5
    assert five[first].std().item() == pytest.approx(expected, rel=0.1)


def test_a_changed_setting_redraws_no_other_layer():
    base = build_model(settings(), 10, CROSS_ENTROPY, 42).state_dict()
    changed = build_model(settings(batchnorm_weight="ones"), 20, CROSS_ENTROPY, 42).state_dict()
    convolutions = [name for name in base if base[name].ndim == 4]
    assert all(torch.equal(base[name], changed[name]) for name in convolutions)


def test_kaiming_normal_has_variance_two_over_fan_in_and_no_bias():
    network = build_model(settings(), 1000, CROSS_ENTROPY, 42)
    for name, module in network.named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            fan_in = module.weight[0].numel()
            standardized = module.weight.detach().double() * math.sqrt(fan_in / 2)
            error = 6 / math.sqrt(module.weight.numel())
            assert abs(standardized.mean().item()) < error, name
            assert abs(standardized.var().item() - 1) < error * math.sqrt(2), name
            assert standardized.abs().max() > 2.5, f"{name}: a normal distribution has tails"
    assert torch.equal(network.fc.bias, torch.zeros(1000))


def test_batchnorm_weights_are_uniform_and_biases_zero():
    modules = batchnorms(build_model(settings(), 10, CROSS_ENTROPY, 42)).values()
    weights = torch.cat([module.weight.detach() for module in modules])
    assert weights.min() >= 0
    assert weights.max() < 1
    quantiles = weights.quantile(torch.tensor([0.1, 0.5, 0.9]))
    torch.testing.assert_close(quantiles, torch.tensor([0.1, 0.5, 0.9]), atol=0.03, rtol=0)
    assert all(not module.bias.any() for module in modules)


def test_batchnorm_scale_multiplies_the_weights():
    scaled = batchnorms(build_model(settings(batchnorm_weight="ones", batchnorm_scale=8.5), 10, CROSS_ENTROPY, 42))
    assert all((module.weight == 8.5).all() for module in scaled.values())
    uniform = batchnorms(build_model(settings(), 10, CROSS_ENTROPY, 42))
    doubled = batchnorms(build_model(settings(batchnorm_scale=2.0), 10, CROSS_ENTROPY, 42))
    assert all(torch.equal(2 * uniform[name].weight, doubled[name].weight) for name in uniform)


@pytest.mark.parametrize("weight", [0.0, 8.0])
@pytest.mark.parametrize(("architecture", "last", "blocks"), [("resnet18", "bn2", 8), ("resnet50", "bn3", 16)])
def test_only_each_blocks_last_batchnorm_starts_as_configured(architecture, last, blocks, weight):
    """At 0 blocks start as their shortcuts (Goyal et al. 2017); 8 is AlgoPerf's `imagenet_resnet_large_bn_init`."""
    model = settings(architecture=architecture, residual_batchnorm_weight=weight, batchnorm_weight="ones")
    modules = batchnorms(build_model(model, 10, CROSS_ENTROPY, 42))
    changed = [name for name, module in modules.items() if not (module.weight == 1).any()]
    assert len(changed) == blocks
    assert all(name.endswith(f".{last}") and (modules[name].weight == weight).all() for name in changed)


def test_torchvision_initialization_is_torchvisions_distribution():
    network = build_model(settings(initialization="torchvision", batchnorm_weight="ones"), 10, CROSS_ENTROPY, 42)
    conv = network.layer4[1].conv2
    fan_out = conv.out_channels * 9
    assert conv.weight.std().item() == pytest.approx(math.sqrt(2 / fan_out), rel=0.01)
    bound = 1 / math.sqrt(512)
    assert 0.9 * bound < network.fc.weight.abs().max() <= bound
    assert network.fc.bias.any()


@pytest.mark.parametrize("initialization", ["kaiming_normal", "torchvision"])
def test_bce_bias_gives_every_class_the_probability_of_one_in_classes_plus_one(initialization):
    network = build_model(settings(initialization=initialization), 1000, BCE, 42)
    torch.testing.assert_close(network.fc.bias.sigmoid(), torch.full((1000,), 1 / 1001))
    plain = replace(BCE, log_classes_bias=False)
    assert not build_model(settings(), 1000, plain, 42).fc.bias.any()


ACTIVATIONS = {
    "silu": (nn.SiLU, lambda x: x / (1 + math.exp(-x))),
    "gelu": (nn.GELU, lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2),
    "gelu_tanh": (nn.GELU, lambda x: x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2),
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("architecture", ["resnet18", "resnet50"])
def test_activations_replace_every_relu(architecture, activation):
    """SiLU and both forms of GELU by the formulas of Hendrycks & Gimpel 2016."""
    kind, formula = ACTIVATIONS[activation]
    with torch.device("meta"):
        relu = build_model(settings(architecture=architecture), 10, CROSS_ENTROPY, 42)
        other = build_model(settings(architecture=architecture, activation=activation), 10, CROSS_ENTROPY, 42)
        assert other(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    replaced = [name for name, module in other.named_modules() if isinstance(module, kind)]
    assert replaced == [name for name, module in relu.named_modules() if isinstance(module, nn.ReLU)]
    assert not any(isinstance(module, nn.ReLU) for module in other.modules())
    points = torch.linspace(-4, 4, 81, dtype=torch.float64)
    expected = torch.tensor([formula(point) for point in points.tolist()], dtype=torch.float64)
    torch.testing.assert_close(other.relu(points.clone()), expected, rtol=0, atol=1e-9)
