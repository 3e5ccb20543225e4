"""Sharpness-aware minimization (Foret et al. 2021): use the gradient at the worst nearby point."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic.dataclasses import dataclass

from launcher.algorithms.base import Algorithm, Gradients
from launcher.compute.foreach import gradients_of
from launcher.config.declaration import RunPlan
from launcher.config.fields import STRICT, Count, Positive
from launcher.data.batch import Batch
from launcher.later import nn, torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(config=STRICT)
class SAM(Algorithm, compute_gradients=10):
    """Computes the gradient at the point that each rank's own gradient leads to, if (step + 1) % interval == 0.

    Both passes use the same batch. A rank whose own gradient is not finite has NaN weights in the second pass, which
    makes the gradients of all ranks NaN, so that the step handles them like any others that are not finite.
    """

    rho: Positive
    interval: Count
    epsilon: Positive
    batchnorm: Literal["once", "both_passes"]

    def acts_at(self, plan: RunPlan, step: int) -> int:
        return (step + 1) % self.interval == 0

    @classmethod
    def advice(cls, values: Self | None, bound: Literal["data", "step"]) -> str | None:
        if bound == "step" and values is not None and values.interval < 10:
            return f"algorithms.sam.interval=10: a second gradient every 10 steps instead of every {values.interval}"
        return None

    def set_up(self) -> None:
        self.freezes_statistics = self.batchnorm == "once"

    def compute_gradients(self, batch: Batch, model: nn.Module, gradients: Gradients) -> Tensor:
        if not self.acts_at(self.context.plan, batch.moment.step):
            return gradients(batch)
        loss = gradients(batch, synchronize=False)
        weights: list[Tensor] = [p for p in model.parameters() if p.grad is not None]
        directions = gradients_of(weights)
        norm = nn.utils.get_total_norm(directions)
        finite = norm.isfinite()
        norm = torch.where(finite, norm, torch.nan)
        with torch.no_grad():
            before = torch._foreach_mul(weights, 1.0)  # note: an exact copy in one kernel
            # note: overwrites the gradients; a loss scale cancels in g / norm
            torch._foreach_mul_(directions, self.rho / (norm + self.epsilon))
            torch._foreach_add_(weights, directions)
        uphill = gradients(batch, update_statistics=not self.freezes_statistics)
        with torch.no_grad():
            torch._foreach_copy_(weights, before)
        # note: the loss scaler handles gradients that overflow with a finite loss
        return torch.where(finite & ~uphill.isfinite(), uphill, loss)
