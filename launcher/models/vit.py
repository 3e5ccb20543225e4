"""The plain vision transformer; its network is in `vision_transformer.py`."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from launcher.config.choices import ModelConfig, Setting
from launcher.config.fields import STRICT, Count
from launcher.errors import Problem, UserError
from launcher.later import nn, torch
from launcher.models.parameters import generator_of

if TYPE_CHECKING:
    from torch import Tensor

_CUT_DEVIATION = 0.87962566103423978  # of a standard normal distribution truncated at two


@dataclass(frozen=True, config=STRICT)
class VisionTransformerModel(ModelConfig):
    """big_vision's ViT with sinusoidal position embeddings and a tanh layer before the head; AlgoPerf's variants."""

    has_batch_norm = False
    any_channels = True

    name: Literal["vit"]
    architecture: Literal["vit"]
    patch_size: Count
    width: Annotated[int, Field(ge=8, multiple_of=4)]
    depth: Count
    heads: Count
    mlp_width: Count
    pooling: Literal["mean", "attention"]
    layer_norm: Literal["pre", "post"]
    glu: bool

    def keywords(self, channels: int = 3) -> dict[str, Setting]:
        common = {field.name for field in fields(ModelConfig)}
        own = {key: value for key, value in vars(self).items() if key not in common}
        return own | ({"channels": channels} if channels != 3 else {})

    def network(self, classes: int, seed: int, channels: int = 3) -> nn.Module:
        from launcher.models.vision_transformer import VisionTransformer

        if self.width % self.heads:
            raise UserError(Problem(f"must divide model.width={self.width}", "model.heads", self.heads))
        sizes: dict[str, Any] = self.keywords(channels)
        network = VisionTransformer(classes, **sizes)
        for name, parameter in network.named_parameters():
            draw_weight(name, parameter.detach(), generator_of(seed, name))
        return network


def draw_weight(name: str, values: Tensor, generator: torch.Generator) -> None:
    """Draw a parameter of the vision transformer in place, as big_vision's flax modules do.

    Normal with variance 1 / fan-in, truncated at two deviations, for patches and the layer before the head; uniform
    (Glorot & Bengio 2010) for attention and perceptrons, query, key and value each; the head is zero.
    """
    *_, layer, kind = name.split(".")[-2:]
    if "norm" in layer:
        return
    if layer in ("embedding", "pre_logits") and kind == "weight":
        deviation = values[0].numel() ** -0.5 / _CUT_DEVIATION
        nn.init.trunc_normal_(values, std=deviation, a=-2 * deviation, b=2 * deviation, generator=generator)
    elif kind == "probe":
        values.uniform_(-1, 1, generator=generator).mul_(math.sqrt(6 / (1 + values.numel())))
    elif kind == "weight" and layer != "head":
        for part in values.chunk(3 if layer == "qkv" else 1):
            nn.init.xavier_uniform_(part, generator=generator)
    elif layer in ("fc1", "gate", "fc2"):
        values.normal_(std=1e-6, generator=generator)
    else:
        values.zero_()
