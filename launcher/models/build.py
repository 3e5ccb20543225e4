"""The residual networks of torchvision with the run's initial weights (He et al. 2016)."""

from __future__ import annotations

import math

import torch
from torch import nn
from torchvision.models import get_model
from torchvision.models.resnet import BasicBlock, Bottleneck

from launcher.config import schema
from launcher.models.surgery import Surgery
from launcher.randomness import key


def build_model(model: schema.Model, classes: int, loss: schema.Loss, seed: int) -> nn.Module:
    """A torchvision ResNet of `classes` logits, float32 on the CPU, its parameter names torchvision's own.

    Initial weights depend on the seed, a parameter's name and its own settings only: the global generators are
    neither read nor moved, and changing one setting redraws no other layer.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(key(seed, "initialization"))
        network: nn.Module = get_model(model.architecture, weights=None, num_classes=classes)
    if model.initialization == "kaiming_normal":
        _draw_kaiming_normal(network, seed)
    _set_batchnorm(network, model, seed)
    if isinstance(loss, schema.BCE) and loss.log_classes_bias:
        nn.init.constant_(network.get_parameter("fc.bias"), -math.log(classes))
    if model.activation != "relu":
        replace_relu(network, activation=model.activation)
    return network


def model_surgeries(model: schema.Model) -> dict[str, Surgery]:
    """By name, what `build_model` changes of torchvision's network besides its weights."""
    return (
        {}
        if model.activation == "relu"
        else {model.activation: Surgery(replace_relu, {"activation": model.activation})}
    )


def _generator(seed: int, name: str) -> torch.Generator:
    return torch.Generator().manual_seed(key(seed, f"initialization of {name}"))


def _draw_kaiming_normal(network: nn.Module, seed: int) -> None:
    """Normal with variance 2 / fan-in for convolutions and the last layer, biases zero (He et al. 2015)."""
    for name, module in network.named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu", generator=_generator(seed, name))
            if module.bias is not None:
                nn.init.zeros_(module.bias)


@torch.no_grad()
def _set_batchnorm(network: nn.Module, model: schema.Model, seed: int) -> None:
    for name, module in network.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            if model.batchnorm_weight == "uniform":
                module.weight.uniform_(0, 1, generator=_generator(seed, name))
            module.weight.mul_(model.batchnorm_scale)
    if model.zero_init_residual:
        for module in network.modules():
            if isinstance(module, Bottleneck):
                module.bn3.weight.zero_()
            elif isinstance(module, BasicBlock):
                module.bn2.weight.zero_()


def replace_relu(network: nn.Module, *, activation: str) -> None:
    """Replace each ReLU by SiLU or GELU, in place."""
    for parent in list(network.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.ReLU):
                setattr(parent, name, nn.SiLU(inplace=True) if activation == "silu" else nn.GELU())
