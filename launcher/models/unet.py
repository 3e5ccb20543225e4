"""The 2-D nnU-Net of NVIDIA's examples; its network is in `residual_unet.py`."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from launcher.config.choices import ModelConfig, Setting
from launcher.config.fields import STRICT, Count
from launcher.later import nn
from launcher.models.parameters import generator_of


@dataclass(frozen=True, config=STRICT)
class UNetModel(ModelConfig):
    """A U-Net of `levels` resolutions with a class of each pixel; convolutions are drawn as He et al. (2015)."""

    takes = "mask"
    any_channels = True

    name: Literal["unet"]
    architecture: Literal["unet"]
    filters: Count
    most_filters: Count
    levels: Annotated[int, Field(ge=2, le=8)]
    normalization: Literal["batch", "instance"]
    residual: bool

    def keywords(self, channels: int = 3) -> dict[str, Setting]:
        common = {field.name for field in fields(ModelConfig)}
        return {"channels": channels, **{key: value for key, value in vars(self).items() if key not in common}}

    def network(self, classes: int, seed: int, channels: int = 3) -> nn.Module:
        from launcher.models.residual_unet import SLOPE, ResidualUNet

        sizes: dict[str, Any] = self.keywords(channels)
        network = ResidualUNet(classes, **sizes)
        for name, module in network.named_modules():
            if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
                weight, generator = module.weight, generator_of(seed, f"{name}.weight")
                slope = SLOPE if isinstance(module, nn.Conv2d) else 5**0.5
                draw = nn.init.kaiming_normal_ if isinstance(module, nn.Conv2d) else nn.init.kaiming_uniform_
                draw(weight, a=slope, generator=generator)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        return network
