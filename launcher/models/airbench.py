"""The network of airbench for small images; it is in `whitened_network.py`, whose source an export has."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from launcher.config.choices import ModelConfig, Setting
from launcher.config.fields import STRICT, Count, Positive
from launcher.later import nn
from launcher.models.parameters import generator_of


@dataclass(frozen=True, config=STRICT)
class AirbenchModel(ModelConfig):
    """Jordan's network (2024, arXiv:2404.00498); the first filters of its convolutions start as identities."""

    library = "model.py"
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
        from launcher.models.whitened_network import WhitenedNetwork

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

    def source(self) -> tuple[str, str]:
        from launcher.models.whitened_network import PARTS

        return "\n\n".join(inspect.getsource(part) for part in PARTS), PARTS[-1].__name__
