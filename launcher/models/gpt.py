"""GPT-2 and what later models changed in it; its network is in `causal_transformer.py`."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from launcher.config.choices import ModelConfig, Setting
from launcher.config.fields import STRICT, Count
from launcher.errors import Problem, UserError
from launcher.later import nn
from launcher.models.parameters import generator_of

_DEVIATION = 0.02


@dataclass(frozen=True, config=STRICT)
class GPTModel(ModelConfig):
    """GPT-2: pre-norm blocks, learned positions, a head with the embedding's weights; other values are of later models.

    Weights are normal with deviation 0.02, those that end a residual branch divided by the root of their number.
    """

    has_batch_norm = False
    draws = True
    takes = "tokens"

    name: Literal["gpt"]
    architecture: Literal["gpt"]
    context: Count
    width: Annotated[int, Field(ge=8, multiple_of=2)]
    depth: Count
    heads: Count
    mlp_width: Count
    positions: Literal["learned", "rotary"]
    activation: Literal["gelu", "relu2"]
    qk_norm: bool
    dropout: Annotated[float, Field(ge=0, lt=1)]

    @property
    def is_gpt2(self) -> bool:
        """Whether the network is that of GPT-2, whatever its sizes."""
        return self.positions == "learned" and self.activation == "gelu" and not self.qk_norm

    def keywords(self, channels: int = 3) -> dict[str, Setting]:
        common = {field.name for field in fields(ModelConfig)}
        return {key: value for key, value in vars(self).items() if key not in common}

    def network(self, classes: int, seed: int, channels: int = 3) -> nn.Module:
        from launcher.models.causal_transformer import CausalTransformer

        if self.width % (2 * self.heads):
            message = f"must divide half of model.width={self.width}"
            raise UserError(Problem(message, "model.heads", self.heads))
        sizes: dict[str, Any] = self.keywords()
        network = CausalTransformer(classes, **sizes)
        for name, parameter in network.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.ndim > 1:
                scale = (2 * self.depth) ** -0.5 if name.endswith("c_proj.weight") else 1.0
                nn.init.normal_(parameter, std=scale * _DEVIATION, generator=generator_of(seed, name))
        return network
