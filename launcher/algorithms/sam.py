"""Sharpness-aware minimisation (Foret et al. 2021): the gradient at the worst nearby point, every so many steps."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from launcher.algorithms.base import Algorithm, Context, Gradients
from launcher.config.algorithms import SAMConfig
from launcher.data.batch import Batch
from launcher.foreach import gradients_of


class SAM(Algorithm[SAMConfig]):
    """On steps with (step + 1) % interval == 0, the gradient at the point that the process's own gradient leads to.

    Both passes see the same batch. A rank whose own gradient is not finite takes the second pass with weights that are
    NaN: its gradients make those of all ranks NaN, so that the step treats them as any others that are not finite.
    """

    def __init__(self, values: SAMConfig, context: Context):
        super().__init__(values, context)
        self.freezes_statistics = values.batchnorm == "once"

    def compute_gradients(self, batch: Batch, model: nn.Module, gradients: Gradients) -> Tensor:
        if not self.values.acts_at(self.context.plan, batch.moment.step):
            return gradients(batch)
        loss = gradients(batch, synchronize=False)
        weights: list[Tensor] = [p for p in model.parameters() if p.grad is not None]
        directions = gradients_of(weights)
        norm = nn.utils.get_total_norm(directions)
        finite = norm.isfinite()
        norm = torch.where(finite, norm, torch.nan)
        with torch.no_grad():
            before = torch._foreach_mul(weights, 1.0)  # note: copies in one launch, bit for bit
            # note: the gradients are used up; a loss scale cancels in g / norm
            torch._foreach_mul_(directions, self.values.rho / (norm + self.values.epsilon))
            torch._foreach_add_(weights, directions)
        uphill = gradients(batch, update_statistics=not self.freezes_statistics)
        with torch.no_grad():
            torch._foreach_copy_(weights, before)
        # note: a gradient may overflow under a finite loss, which is the loss scaler's business
        return torch.where(finite & ~uphill.isfinite(), uphill, loss)
