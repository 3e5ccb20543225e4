"""Squeeze-and-excitation (Hu et al. 2018): weight each channel by a function of the means of all channels."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from pydantic.dataclasses import dataclass

from launcher.algorithms.base import Algorithm
from launcher.compute import randomness
from launcher.config.fields import STRICT, Count
from launcher.later import nn, torch


@dataclass(config=STRICT)
class SqueezeExcite(Algorithm, change_model=10):
    needs = "convolution with that many channels"

    latent_channels: Count
    min_channels: Count

    def network_values(self) -> dict[str, Any]:
        return asdict(self)

    def change_model(self, model: nn.Module) -> None:
        from launcher.algorithms.squeeze_excite_layers import squeeze_excite

        for name, block in squeeze_excite(model, **asdict(self)).items():
            key = randomness.key(self.context.plan.config.seed, f"squeeze_excite of {name}")
            generator = torch.Generator().manual_seed(key)
            for linear in (block.squeeze, block.excite):
                # note: on the CPU, where the generator is
                drawn = nn.init.kaiming_uniform_(torch.empty(linear.weight.shape), a=math.sqrt(5), generator=generator)
                linear.weight.data.copy_(drawn)
