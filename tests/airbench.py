"""Airbench's network and step as functions of tensors, written from the description in arXiv:2404.00498."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

BIAS_FACTOR = 64.0


def logits(
    weights: Mapping[str, Tensor], images: Tensor, *, convolutions: int, momentum: float | None, scale: float = 1 / 9
) -> Tensor:
    """Return the logits of images [B, 3, 32, 32]; momentum: of the running statistics in training, None to use them."""

    def norm(x: Tensor, name: str) -> Tensor:
        statistics = weights[f"{name}.running_mean"], weights[f"{name}.running_var"]
        if momentum is not None:
            count = x.numel() / x.shape[1]
            mean, spread = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)
            for kept, now in zip(statistics, (mean, spread * count / (count - 1)), strict=True):
                kept.copy_((1 - momentum) * kept + momentum * now.detach())
            statistics = mean, spread
        mean, spread = (one.view(1, -1, 1, 1) for one in statistics)
        return (x - mean) / (spread + 1e-12).sqrt() + weights[f"{name}.bias"].view(1, -1, 1, 1)

    def active(x: Tensor) -> Tensor:
        return x * (1 + torch.erf(x / 2**0.5)) / 2

    x = active(F.conv2d(images, weights["whiten.weight"], weights["whiten.bias"]))
    for group in range(3):
        x = F.max_pool2d(F.conv2d(x, weights[f"groups.{group}.convs.0.weight"], padding=1), 2)
        first = x = active(norm(x, f"groups.{group}.norms.0"))
        for number in range(1, convolutions):
            x = F.conv2d(x, weights[f"groups.{group}.convs.{number}.weight"], padding=1)
            x = norm(x, f"groups.{group}.norms.{number}")
            x = active(x + first) if number == 2 else active(x)
    return scale * F.max_pool2d(x, 3).flatten(1) @ weights["head.weight"].T
