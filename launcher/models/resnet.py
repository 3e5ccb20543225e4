"""torchvision's ResNets (He et al. 2016)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

from pydantic.dataclasses import dataclass

from launcher.config.choices import ModelConfig
from launcher.config.declaration import RunPlan
from launcher.config.fields import STRICT, NotNegative, Positive
from launcher.errors import Problem
from launcher.later import nn, no_grad, torch
from launcher.models.parameters import generator_of


@dataclass(frozen=True, config=STRICT)
class TorchvisionModel(ModelConfig):
    """A ResNet; `gelu` is exact, `gelu_tanh` its approximation by tanh, as in JAX (Hendrycks & Gimpel 2016)."""

    library = "torchvision"
    any_channels = True

    name: Literal["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"]
    architecture: Literal["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"]
    activation: Literal["relu", "silu", "gelu", "gelu_tanh"]
    initialization: Literal["kaiming_normal", "torchvision"]
    batchnorm_weight: Literal["ones", "uniform"]
    batchnorm_scale: Positive
    residual_batchnorm_weight: NotNegative | None

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        if self.architecture != self.name:
            message = f"model={self.name} has no other architecture; type model={self.architecture}"
            yield Problem(message, "model.architecture", self.architecture)

    def network(self, classes: int, seed: int, channels: int = 3) -> nn.Module:
        if self.initialization == "torchvision":
            network: nn.Module = library_network(self.architecture, num_classes=classes)
            set_channels(network, channels=channels)
        else:
            # note: skips torchvision's initialization, which would draw all weights twice
            with torch.device("meta"):
                network = library_network(self.architecture, num_classes=classes)
                set_channels(network, channels=channels)
            _draw_kaiming_normal(network.to_empty(device=torch.get_default_device()), seed)
        _set_batchnorm(network, self, seed)
        if self.activation != "relu":
            replace_relu(network, activation=self.activation)
        return network

    def network_changes(self, channels: int = 3) -> dict[str, dict[str, Any]]:
        changed: dict[str, dict[str, Any]] = {"channels": {"channels": channels}} if channels != 3 else {}
        return changed if self.activation == "relu" else changed | {self.activation: {"activation": self.activation}}


def library_network(architecture: str, *, num_classes: int) -> nn.Module:
    """Build torchvision's network without pretrained weights."""
    from torchvision.models import get_model

    network: nn.Module = get_model(architecture, weights=None, num_classes=num_classes)
    return network


def _draw_kaiming_normal(network: nn.Module, seed: int) -> None:
    """Draw normal weights of variance 2 / fan-in for convolutions and the last layer; biases are 0 (He et al. 2015)."""
    for name, module in network.named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu", generator=generator_of(seed, name))
            if module.bias is not None:
                nn.init.zeros_(module.bias)


@no_grad
def _set_batchnorm(network: nn.Module, model: TorchvisionModel, seed: int) -> None:
    for name, module in network.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_parameters()
            if model.batchnorm_weight == "uniform":
                module.weight.uniform_(0, 1, generator=generator_of(seed, name))
            module.weight.mul_(model.batchnorm_scale)
    if model.residual_batchnorm_weight is not None:
        from torchvision.models.resnet import BasicBlock, Bottleneck

        for module in network.modules():
            if isinstance(module, BasicBlock | Bottleneck):
                last = module.bn3 if isinstance(module, Bottleneck) else module.bn2
                last.weight.fill_(model.residual_batchnorm_weight)


def set_channels(network: nn.Module, *, channels: int) -> None:
    """Replace the first convolution of a ResNet by one for images of channels, drawn as torchvision does, in place."""
    if channels != 3:
        network.conv1 = nn.Conv2d(channels, 64, 7, 2, 3, bias=False)
        nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")


def replace_relu(network: nn.Module, *, activation: str) -> None:
    """Replace each ReLU by SiLU, or by GELU exactly or in its tanh form, in place."""
    replacements: dict[str, Callable[[], nn.Module]] = {
        "silu": lambda: nn.SiLU(inplace=True),
        "gelu": nn.GELU,
        "gelu_tanh": lambda: nn.GELU("tanh"),
    }
    for parent in list(network.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.ReLU):
                setattr(parent, name, replacements[activation]())
