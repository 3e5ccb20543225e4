"""Gradient clipping: by the global norm (Pascanu et al. 2013), by value, or adaptively (Brock et al. 2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from launcher.algorithms.base import Algorithm

_SMALLEST_WEIGHT_NORM = 1e-3


def unit_norm(tensor: Tensor) -> Tensor:
    """2-norm of each output unit: of [O, ...] as [O, 1, ...], of a vector as a whole."""
    units = tuple(range(1, tensor.ndim)) or None
    norm: Tensor = torch.linalg.vector_norm(tensor, dim=units, keepdim=units is not None)
    return norm


@torch.no_grad()
def clip_adaptively(weights: list[nn.Parameter], threshold: float) -> None:
    """Scale each unit's gradient down to norm `threshold * max(|w|, 1e-3)`, in place."""
    for weight in weights:
        if weight.grad is not None:
            most = unit_norm(weight).clamp(min=_SMALLEST_WEIGHT_NORM) * threshold
            weight.grad.mul_((most / unit_norm(weight.grad).clamp(min=1e-6)).clamp(max=1.0))


class GradientClipping(Algorithm):
    """Clips the averaged, unscaled gradients before the optimizer's step."""

    def change_gradients(self, model: nn.Module) -> None:
        weights = [p for p in model.parameters() if p.grad is not None]
        match self.values.kind:
            case "norm":
                nn.utils.clip_grad_norm_(weights, self.values.threshold)
            case "value":
                nn.utils.clip_grad_value_(weights, self.values.threshold)
            case "adaptive":
                clip_adaptively(weights, self.values.threshold)


ALGORITHM = GradientClipping
