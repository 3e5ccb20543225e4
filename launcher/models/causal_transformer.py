"""GPT-2's transformer (Radford et al. 2019), with rotary positions, squared ReLU and QK norm as later models have them.

Layers have the names of Hugging Face's GPT-2.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class CausalTransformer(nn.Module):
    """Compute logits [B, T, vocabulary] of tokens int [B, T]; the head has the weights of the embedding.

    positions: `learned`, for `context` places, or `rotary` (Su et al. 2021), for any length. activation: of the MLP,
    `gelu` in its tanh form, or `relu2`. qk_norm: RMS norm of queries and keys.
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        context: int,
        width: int,
        depth: int,
        heads: int,
        mlp_width: int,
        positions: str,
        activation: str,
        qk_norm: bool,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.heads = heads
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(context, width) if positions == "learned" else None
        self.drop = nn.Dropout(dropout)
        self.h = nn.ModuleList()
        for _ in range(depth):
            attention = CausalAttention(width, heads, positions == "rotary", qk_norm, dropout)
            self.h.append(CausalBlock(width, attention, Perceptron(width, mlp_width, activation, dropout)))
        self.ln_f = nn.LayerNorm(width)
        self.slopes: Tensor | None
        self.register_buffer("slopes", None, persistent=False)

    def use_alibi(self) -> None:
        """Add ALiBi's bias to all attention, without position embeddings, as if these were zero and stayed so."""
        self.wpe = None
        self.slopes = torch.tensor([2.0**-e for e in slope_exponents(self.heads)], device=self.wte.weight.device)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load weights by these names or those of Hugging Face's GPT-2."""
        return super().load_state_dict(network_names(state_dict), strict, assign)

    def residual_branches(self) -> list[list[nn.Module]]:
        """Return the last layers of the branches of each block."""
        return [[block.get_submodule(name) for name in ("attn", "mlp")] for block in self.h]

    def get_classifier(self) -> nn.Module:
        """Return a layer without weights: those of the head are the embedding's."""
        return nn.Identity()

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        hidden = self.wte(tokens)
        if self.wpe is not None:
            if length > self.wpe.num_embeddings:
                raise ValueError(f"{length} tokens are more than its context of {self.wpe.num_embeddings}")
            hidden = hidden + self.wpe.weight[:length]
        hidden = self.drop(hidden)
        bias = None if self.slopes is None else distance_bias(self.slopes, length)
        for block in self.h:
            hidden = block(hidden, bias)
        return F.linear(self.ln_f(hidden), self.wte.weight)


def network_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights by the names of `CausalTransformer`, also those of Hugging Face's GPT-2.

    They start with `transformer`, and weights of linear layers are transposed.
    """
    start = "transformer."
    return {
        name.removeprefix(start): tensor.T if name.startswith(start) and is_turned(name) else tensor
        for name, tensor in weights.items()
    }


def is_turned(name: str) -> bool:
    """Return whether Hugging Face's GPT-2 has the transpose of a weight."""
    return ".c_" in name and name.endswith("weight")


class CausalBlock(nn.Module):
    """Attention, then a perceptron, each of the normalized input and added to it."""

    def __init__(self, width: int, attention: nn.Module, perceptron: nn.Module):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), attention
        self.ln_2, self.mlp = nn.LayerNorm(width), perceptron

    def forward(self, hidden: Tensor, bias: Tensor | None) -> Tensor:
        hidden = hidden + self.attn(self.ln_1(hidden), bias)
        mapped: Tensor = hidden + self.mlp(self.ln_2(hidden))
        return mapped


class CausalAttention(nn.Module):
    """Scaled dot-product attention of each token to itself and those before it."""

    def __init__(self, width: int, heads: int, rotary: bool, qk_norm: bool, dropout: float):
        super().__init__()
        self.heads, self.rotary, self.qk_norm, self.dropout = heads, rotary, qk_norm, dropout
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, hidden: Tensor, bias: Tensor | None) -> Tensor:
        parts = self.c_attn(hidden).chunk(3, dim=2)
        query, key, value = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in parts)
        if self.qk_norm:
            query, key = (F.rms_norm(part, part.shape[-1:]) for part in (query, key))
        if self.rotary:
            query, key = rotated(query), rotated(key)
        # note: torch's fused kernels on CPUs take biases of two or four dimensions
        attended = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=None if bias is None else bias.to(query.dtype)[None],
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=bias is None,
        )
        mixed: Tensor = self.drop(self.c_proj(attended.transpose(1, 2).flatten(2)))
        return mixed


class Perceptron(nn.Module):
    """Two layers with GELU's tanh form or a squared ReLU between them."""

    def __init__(self, width: int, mlp_width: int, activation: str, dropout: float):
        super().__init__()
        self.activation = activation
        self.c_fc = nn.Linear(width, mlp_width)
        self.c_proj = nn.Linear(mlp_width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = self.c_fc(hidden)
        hidden = F.gelu(hidden, approximate="tanh") if self.activation == "gelu" else hidden.relu().square()
        mapped: Tensor = self.drop(self.c_proj(hidden))
        return mapped


def rotated(heads: Tensor) -> Tensor:
    """Rotate pairs of features of queries or keys [B, H, T, D] by angles of their places (Su et al. 2021), in float32.

    Feature i is paired with i + D / 2, at the frequency 10,000^(-2 i / D).
    """
    half = heads.shape[-1] // 2
    frequencies = 10_000.0 ** (-torch.arange(half, device=heads.device) / half)
    angles = torch.arange(heads.shape[2], device=heads.device)[:, None] * frequencies
    first, second = heads.float().chunk(2, dim=3)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=3).to(heads.dtype)


def distance_bias(slopes: Tensor, length: int) -> Tensor:
    """Return ALiBi's bias of attention [H, T, T]: minus slope [H] times distance; minus infinity for later tokens."""
    places = torch.arange(length, device=slopes.device)
    distances = places[:, None] - places
    return (-slopes[:, None, None] * distances).masked_fill(distances < 0, -math.inf)


def slope_exponents(heads: int) -> list[float]:
    """Return e of each head's slope 2^-e: 8 h / n for a power of two n, else between those of the next lower and upper.

    That is the published interpolation: every second one of the upper power follows those of the lower one.
    """
    lower = 2 ** int(math.log2(heads))
    own = [8 * (head + 1) / lower for head in range(lower)]
    return own + [8 * (head + 1) / (2 * lower) for head in range(0, 2 * (heads - lower), 2)]
