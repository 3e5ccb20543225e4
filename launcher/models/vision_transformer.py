"""big_vision's plain vision transformer (Beyer et al. 2022), and AlgoPerf's variants of it (Dahl et al. 2023)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class VisionTransformer(nn.Module):
    """Compute logits of images [B, C, H, W], whose size is a multiple of the patches'; initial weights are torch's.

    pooling: `mean` of the tokens, or `attention` of one learned query. layer_norm: `pre`, before attention and
    perceptron and after the last block, or `post`, after each sum and nowhere else. glu: the perceptron's hidden values
    times a linear map of themselves.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        patch_size: int,
        width: int,
        depth: int,
        heads: int,
        mlp_width: int,
        pooling: str,
        layer_norm: str,
        glu: bool,
        channels: int = 3,
    ):
        super().__init__()
        self.embedding = nn.Conv2d(channels, width, patch_size, stride=patch_size)
        self.blocks = nn.ModuleList([Block(width, heads, mlp_width, layer_norm, glu) for _ in range(depth)])
        self.norm = norm(width) if layer_norm == "pre" else nn.Identity()
        self.pooling = AttentionPooling(width, heads, mlp_width) if pooling == "attention" else None
        self.pre_logits = nn.Linear(width, width)
        self.head = nn.Linear(width, num_classes)

    def residual_branches(self) -> list[list[nn.Module]]:
        """Return the last layers of the branches of each block."""
        return [[block.get_submodule(name) for name in ("attention", "mlp")] for block in self.blocks]

    def forward(self, images: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        if height % self.embedding.stride[0] or width % self.embedding.stride[1]:
            raise ValueError(f"{height} x {width} is not a multiple of the patch size {self.embedding.stride[0]}")
        patches = self.embedding(images)
        tokens = patches.flatten(2).transpose(1, 2) + positions(*patches.shape[1:], device=images.device)
        for block in self.blocks:
            tokens = block(tokens)
        tokens = self.norm(tokens)
        pooled = tokens.mean(1) if self.pooling is None else self.pooling(tokens)
        logits: Tensor = self.head(torch.tanh(self.pre_logits(pooled)))
        return logits


def norm(width: int) -> nn.LayerNorm:
    """Return a layer norm with flax's epsilon."""
    return nn.LayerNorm(width, eps=1e-6)


class Block(nn.Module):
    """Attention, then a perceptron, each added to its input."""

    def __init__(self, width: int, heads: int, mlp_width: int, layer_norm: str, glu: bool):
        super().__init__()
        self.is_post = layer_norm == "post"
        self.norm1 = norm(width)
        self.attention = Attention(width, heads)
        self.norm2 = norm(width)
        self.mlp = MLP(width, mlp_width, glu)

    def forward(self, tokens: Tensor) -> Tensor:
        if self.is_post:
            attended: Tensor = self.norm1(tokens + self.attention(tokens))
            outputs: Tensor = self.norm2(attended + self.mlp(attended))
        else:
            attended = tokens + self.attention(self.norm1(tokens))
            outputs = attended + self.mlp(self.norm2(attended))
        return outputs


class Attention(nn.Module):
    """Scaled dot-product attention over tokens [B, N, width], of their own queries or of others [B, M, width]."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, tokens: Tensor, queries: Tensor | None = None) -> Tensor:
        width = self.out.in_features
        if queries is None:
            query, key, value = self.qkv(tokens).chunk(3, dim=2)
        else:
            weight, bias = self.qkv.weight, self.qkv.bias
            query = F.linear(queries, weight[:width], bias[:width])
            key, value = F.linear(tokens, weight[width:], bias[width:]).chunk(2, dim=2)
        query, key, value = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (query, key, value))
        attended = F.scaled_dot_product_attention(query, key, value)
        mixed: Tensor = self.out(attended.transpose(1, 2).flatten(2))
        return mixed


class MLP(nn.Module):
    """Two layers with GELU's tanh form between them."""

    def __init__(self, width: int, mlp_width: int, glu: bool):
        super().__init__()
        self.fc1 = nn.Linear(width, mlp_width)
        self.gate = nn.Linear(mlp_width, mlp_width) if glu else None
        self.fc2 = nn.Linear(mlp_width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = F.gelu(self.fc1(tokens), approximate="tanh")
        if self.gate is not None:
            hidden = hidden * self.gate(hidden)
        mapped: Tensor = self.fc2(hidden)
        return mapped


class AttentionPooling(nn.Module):
    """Attention of one learned query over the tokens, plus a perceptron of its result."""

    def __init__(self, width: int, heads: int, mlp_width: int):
        super().__init__()
        self.probe = nn.Parameter(torch.zeros(1, 1, width))
        self.attention = Attention(width, heads)
        self.norm = norm(width)
        self.mlp = MLP(width, mlp_width, glu=False)

    def forward(self, tokens: Tensor) -> Tensor:
        attended = self.attention(tokens, self.probe.expand(tokens.shape[0], -1, -1))[:, 0]
        pooled: Tensor = attended + self.mlp(self.norm(attended))
        return pooled


def positions(width: int, rows: int, columns: int, *, device: torch.device) -> Tensor:
    """Return sines and cosines of each patch's column, then row: float32 [rows * columns, width] (Chen et al. 2021).

    Uses width // 4 frequencies from 1 down to 1/10,000.
    """
    count = width // 4
    frequencies = 10_000.0 ** -(torch.arange(count, device=device) / (count - 1))
    across = (torch.arange(columns, device=device)[:, None] * frequencies).repeat(rows, 1)
    down = (torch.arange(rows, device=device)[:, None] * frequencies).repeat_interleave(columns, 0)
    return torch.cat([across.sin(), across.cos(), down.sin(), down.cos()], dim=1)
