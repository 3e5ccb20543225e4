"""Sharpness-aware minimization (Foret et al. 2021): use the gradient at the worst nearby point."""

import torch
from torch import Tensor, nn

from launcher.algorithms.base import Algorithm, Context, Gradients
from launcher.config.algorithms import SAMConfig
from launcher.data.batch import Batch
from launcher.foreach import gradients_of


class SAM(Algorithm[SAMConfig]):
    """Computes the gradient at the point that each rank's own gradient leads to, if (step + 1) % interval == 0.

    Both passes use the same batch. A rank whose own gradient is not finite has NaN weights in the second pass, which
    makes the gradients of all ranks NaN, so that the step handles them like any others that are not finite.
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
            before = torch._foreach_mul(weights, 1.0)  # note: an exact copy in one kernel
            # note: overwrites the gradients; a loss scale cancels in g / norm
            torch._foreach_mul_(directions, self.values.rho / (norm + self.values.epsilon))
            torch._foreach_add_(weights, directions)
        uphill = gradients(batch, update_statistics=not self.freezes_statistics)
        with torch.no_grad():
            torch._foreach_copy_(weights, before)
        # note: the loss scaler handles gradients that overflow with a finite loss
        return torch.where(finite & ~uphill.isfinite(), uphill, loss)
