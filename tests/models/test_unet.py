"""The U-Net against the numbers of NVIDIA's and Composer's network, and its initial weights."""

import re

import pytest
import torch
from torch import nn

from launcher.config.compose import compose
from launcher.losses.dice_cross_entropy import dice_loss
from launcher.models.build import build_model


def unet(*words: str, classes: int = 4, channels: int = 3) -> nn.Module:
    config = compose(["model=unet", "loss=dice_cross_entropy", "task=segmentation", *words]).config
    return build_model(config.model, classes, config.loss, 3, channels)


def parameters_of_composers(channels: int, classes: int, widths: list[int], *, residual: bool) -> int:
    """Count by layer what composer/models/unet/_layers.py (v0.5.0) builds: its kernels of 3, norms with two vectors."""

    def layer(inputs: int, outputs: int) -> int:
        return 9 * inputs * outputs + 2 * outputs

    total, inputs = 0, channels
    for width in widths:
        total += layer(inputs, width) + layer(width, width) + (layer(inputs, width) if residual else 0)
        inputs = width
    for width in widths[-2::-1]:
        total += 4 * inputs * width + width + layer(2 * width, width) + layer(width, width)
        inputs = width
    return total + inputs * classes + classes


@pytest.mark.parametrize("residual", [True, False])
def test_the_parameters_are_as_many_as_composers(residual: bool) -> None:
    network = unet(f"model.residual={str(residual).lower()}", channels=4)
    expected = parameters_of_composers(4, 4, [32, 64, 128, 256, 512, 512], residual=residual)
    assert sum(parameter.numel() for parameter in network.parameters()) == expected


def test_nvidias_network_has_as_many_parameters_and_the_same_outputs() -> None:
    """It is MONAI's DynUNet, with instance norm and without residuals (DeepLearningExamples, nnunet/nn_unet.py)."""
    nets = pytest.importorskip("monai.networks.nets")
    leaky = ("leakyrelu", {"negative_slope": 0.01})
    for levels, filters in ((6, None), (3, [4, 8, 16])):  # note: the first as theirs for slices of BraTS
        strides, instance = [[1, 1], *[[2, 2]] * (levels - 1)], ("INSTANCE", {"affine": True})
        sizes = ([[3, 3]] * levels, strides, strides[1:], filters)
        theirs = nets.DynUNet(2, 4, 4, *sizes, norm_name=instance, act_name=leaky, trans_bias=True)
        words = ["model.residual=false", "model.normalization=instance", f"model.levels={levels}"]
        ours = unet(*words, f"model.filters={filters[0] if filters else 32}", channels=4)
        counts = [sum(parameter.numel() for parameter in one.parameters()) for one in (ours, theirs)]
        assert counts[0] == counts[1]
    weights = {
        own_name(name, levels): value for name, value in theirs.state_dict().items() if "skip_layers" not in name
    }
    ours.load_state_dict(weights)
    images = torch.randn(2, 4, 32, 24, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours(images), theirs(images))


def own_name(name: str, levels: int) -> str:
    """Return our name of a weight of DynUNet's."""
    name = name.replace("transp_conv.conv", "transp_conv").replace("output_block.conv.conv", "output_block")
    name = re.sub(r"norm(\d)", r"conv\1.norm", name)
    name = re.sub(r"^downsamples\.(\d)", lambda match: f"downsamples.{int(match[1]) + 1}", name)
    return name.replace("input_block", "downsamples.0").replace("bottleneck", f"downsamples.{levels - 1}")


def test_widths_levels_and_norms_are_those_of_the_config() -> None:
    network = unet("model.filters=4", "model.most_filters=12", "model.levels=4", "model.normalization=instance")
    expected = parameters_of_composers(3, 4, [4, 8, 12, 12], residual=True)
    assert sum(parameter.numel() for parameter in network.parameters()) == expected
    norms = {type(module) for module in network.modules() if isinstance(module, nn.BatchNorm2d | nn.InstanceNorm2d)}
    assert norms == {nn.InstanceNorm2d}


@pytest.mark.parametrize("words", [[], ["model.normalization=instance"], ["model.residual=false"]])
def test_outputs_have_the_size_of_the_images_and_every_weight_learns(words: list[str]) -> None:
    network = unet(*words, "model.filters=8", "model.levels=3")
    images = torch.randn(2, 3, 37, 22, generator=torch.Generator().manual_seed(0))
    outputs = network(images)
    assert outputs.shape == (2, 4, 37, 22)
    dice_loss(outputs, torch.arange(2 * 37 * 22).view(2, 37, 22) % 4, background=True).backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in network.parameters())


def test_convolutions_are_drawn_as_kaimings_and_independent_of_others() -> None:
    network, wider = unet(), unet(classes=9)
    weight = network.get_parameter("downsamples.4.conv2.conv.weight")
    assert weight.std().item() == pytest.approx((2 / (1 + 0.01**2) / (9 * 512)) ** 0.5, rel=0.01)
    assert torch.equal(weight, wider.get_parameter("downsamples.4.conv2.conv.weight"))
    biases = [value for name, value in network.named_parameters() if name.endswith(("transp_conv.bias", "block.bias"))]
    assert len(biases) == 6
    assert not any(bias.any() for bias in biases)
