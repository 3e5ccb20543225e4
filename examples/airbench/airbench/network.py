"""The network: a small convolution, three groups of others, and a head."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal

import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from launcher.config.choices import ModelConfig, Setting
from launcher.config.fields import STRICT, Count, Positive
from launcher.models.parameters import generator_of


class ConvolutionGroup(nn.Module):
    """Convolutions of 3 x 3, the first before a maximum over 2 x 2, each with a batch norm without a weight, and GELU.

    Of three convolutions the last two have a residual connection.
    """

    def __init__(self, inputs: int, outputs: int, convolutions: int, momentum: float):
        super().__init__()
        widths = [inputs, *[outputs] * (convolutions - 1)]
        self.convs = nn.ModuleList(nn.Conv2d(width, outputs, 3, padding=1, bias=False) for width in widths)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outputs, eps=1e-12, momentum=momentum) for _ in widths)
        for norm in self.norms:
            norm.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = first = F.gelu(self.norms[0](F.max_pool2d(self.convs[0](x), 2)))
        for number in range(1, len(self.convs)):
            x = self.norms[number](self.convs[number](x))
            x = F.gelu(x + first if number == 2 else x)
        return x


class WhitenedNetwork(nn.Module):
    """Compute logits [B, classes] of images [B, channels, H, W] from 18 px on.

    The first convolution has two outputs for each value of a patch of 2 x 2, as `algorithms.whitening` fills it.
    widths: outputs of the groups. convolutions: of each, 2 or 3. output_scale: multiplies the logits.
    """

    def __init__(
        self,
        classes: int,
        *,
        widths: list[int],
        convolutions: int,
        batchnorm_momentum: float,
        output_scale: float,
        channels: int = 3,
    ):
        super().__init__()
        self.output_scale = output_scale
        self.whiten = nn.Conv2d(channels, 8 * channels, 2)
        inputs = [8 * channels, *widths[:-1]]
        self.groups = nn.ModuleList(
            ConvolutionGroup(*pair, convolutions, batchnorm_momentum) for pair in zip(inputs, widths, strict=True)
        )
        self.head = nn.Linear(widths[-1], classes, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        x = F.gelu(self.whiten(images))
        for group in self.groups:
            x = group(x)
        return self.output_scale * self.head(F.adaptive_max_pool2d(x, 1).flatten(1))  # type: ignore[no-any-return]


@dataclass(frozen=True, config=STRICT)
class AirbenchModel(ModelConfig):
    """The first filters of the convolutions start as identities."""

    any_channels = True

    name: Literal["airbench"]
    architecture: Literal["airbench"]
    widths: Annotated[list[Count], Field(min_length=1)]
    convolutions: Literal[2, 3]
    batchnorm_momentum: Annotated[float, Field(gt=0, le=1)]
    output_scale: Positive

    def keywords(self, channels: int = 3) -> dict[str, Setting]:
        common = {field.name for field in fields(ModelConfig)}
        return {"channels": channels, **{key: value for key, value in vars(self).items() if key not in common}}

    def network(self, classes: int, seed: int, channels: int = 3) -> nn.Module:
        values: dict[str, Any] = self.keywords(channels)
        network = WhitenedNetwork(classes, **values)
        for name, module in network.named_modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                # note: as their constructors draw them, but for the bias
                nn.init.kaiming_uniform_(module.weight, a=5**0.5, generator=generator_of(seed, f"{name}.weight"))
            if isinstance(module, nn.Conv2d):
                nn.init.dirac_(module.weight.detach()[: module.in_channels])
        assert network.whiten.bias is not None
        nn.init.zeros_(network.whiten.bias)
        return network
