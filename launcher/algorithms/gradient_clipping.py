"""Gradient clipping: by the global norm (Pascanu et al. 2013), by value, or adaptively (Brock et al. 2021)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic.dataclasses import dataclass

from launcher.algorithms.base import Algorithm
from launcher.compute.foreach import gradients_of
from launcher.config.fields import STRICT, Positive
from launcher.data.batch import Moment
from launcher.later import nn, no_grad, torch

if TYPE_CHECKING:
    from torch import Tensor


_SMALLEST_WEIGHT_NORM = 1e-3
_SMALLEST_GRADIENT_NORM = 1e-6


def unit_norms(tensors: list[Tensor]) -> list[Tensor]:
    """Return the 2-norms of each tensor's output units: [O] for [O, ...], [] for a whole vector."""
    vectors = [t for t in tensors if t.ndim == 1]
    of_vectors = iter(torch._foreach_norm(vectors) if vectors else ())
    return [
        next(of_vectors) if t.ndim == 1 else torch.linalg.vector_norm(t, dim=tuple(range(1, t.ndim))) for t in tensors
    ]


@no_grad
def clip_adaptively(weights: list[Tensor], gradients: list[Tensor], threshold: float) -> None:
    """Scale the gradient of each unit down to norm `threshold * max(|w|, 1e-3)`, in place."""
    factors, norms = unit_norms(weights), unit_norms(gradients)
    torch._foreach_clamp_min_(factors, _SMALLEST_WEIGHT_NORM)
    torch._foreach_mul_(factors, threshold)
    torch._foreach_clamp_min_(norms, _SMALLEST_GRADIENT_NORM)
    torch._foreach_div_(factors, norms)
    torch._foreach_clamp_max_(factors, 1.0)
    for gradient, factor in zip(gradients, factors, strict=True):
        gradient.mul_(factor.view(-1, *[1] * (gradient.ndim - 1)))


@dataclass(config=STRICT)
class GradientClipping(Algorithm, change_gradients=10):
    """Clips the averaged, unscaled gradients before the optimizer's step."""

    kind: Literal["norm", "value", "adaptive"]
    threshold: Positive

    def change_gradients(self, model: nn.Module, moment: Moment) -> None:
        weights: list[Tensor] = [p for p in model.parameters() if p.grad is not None]
        match self.kind:
            case "norm":
                nn.utils.clip_grad_norm_(weights, self.threshold)
            case "value":
                nn.utils.clip_grad_value_(weights, self.threshold)
            case "adaptive":
                clip_adaptively(weights, gradients_of(weights), self.threshold)
