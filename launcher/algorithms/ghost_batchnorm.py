"""Ghost batch norm (Hoffer et al. 2017): compute batch-norm statistics over small chunks of the batch in training."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic.dataclasses import dataclass

from launcher.algorithms.base import Algorithm
from launcher.config.declaration import RunPlan
from launcher.config.fields import STRICT, Count
from launcher.counts import count_of
from launcher.errors import Problem
from launcher.later import nn, torch

if TYPE_CHECKING:
    from torch import Tensor


@cache
def ghost_class(kind: Any) -> type[nn.BatchNorm2d]:
    """Return a batch norm, also for one with activation, that normalizes [B, C, H, W] in ceil(B / ghost_size) chunks.

    Running statistics are updated once for each chunk, as in the paper's algorithm 1; evaluation is unchanged.
    """

    def forward(self: Any, images: Tensor) -> Tensor:
        if not self.training or len(images) <= self.ghost_size:
            return kind.forward(self, images)  # type: ignore[no-any-return]
        return torch.cat([kind.forward(self, chunk) for chunk in images.chunk(-(-len(images) // self.ghost_size))])

    return type(f"Ghost{kind.__name__}", (kind,), {"forward": forward})


@dataclass(config=STRICT)
class GhostBatchNorm(Algorithm, change_model=40):
    """Replaces every batch norm in place; parameter names stay the same."""

    needs = "batch norm"

    ghost_batch_size: Count

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        if plan.rank_batch and self.ghost_batch_size > plan.rank_batch // plan.accumulation:
            message = (
                f"must be at most the {count_of(plan.rank_batch // plan.accumulation, 'image')} of one forward pass"
            )
            yield Problem(message, "ghost_batch_size", self.ghost_batch_size)

    def change_model(self, model: nn.Module) -> None:
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                kind: Any = type(module)
                module.__class__ = ghost_class(kind)
                module.ghost_size = self.ghost_batch_size  # type: ignore[assignment]
