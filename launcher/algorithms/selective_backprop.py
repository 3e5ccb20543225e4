"""Selective backprop (Jiang et al. 2019): train on the samples of a batch with high losses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from launcher import randomness
from launcher.algorithms.base import ForwardAlgorithm, Loss
from launcher.config.declaration import AlgorithmConfig, RunPlan
from launcher.config.fields import STRICT, Count, Probability
from launcher.data.batch import Batch, one_hot, to_device
from launcher.errors import Problem
from launcher.later import F, nn, no_grad, torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, config=STRICT)
class SelectiveBackpropConfig(
    AlgorithmConfig,
    change_batch=40,
    excludes={"sam": "SAM needs the same batch in both passes, but selective backprop selects samples in each"},
    acts_on=("image", "label"),
):
    start: Probability
    end: Probability
    keep: Annotated[float, Field(gt=0, le=1)]
    interval: Count
    scale: Annotated[float, Field(gt=0, le=1)]

    def acts_at(self, plan: RunPlan, step: int) -> int:
        progress = step / plan.total_steps
        return (self.start <= progress) & (progress < self.end) & ((step + 1) % self.interval == 0)

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        if self.start >= self.end:
            yield Problem(f"must be greater than start ({self.start:g})", "end", self.end)
        # note: no later step has a smaller view
        if plan.total_steps and int(plan.view(0) * self.scale) < 1:
            yield Problem(f"leaves no pixel of {plan.view(0)} px; set a larger one", "scale", self.scale)

    def kept(self, plan: RunPlan, samples: int) -> int:
        """Return how many of a batch's samples are chosen: the same on all ranks, in micro-batches of equal size."""
        return max(1, int(self.keep * samples) // plan.accumulation) * plan.accumulation

    def other_view(self, plan: RunPlan, step: int) -> tuple[str, int] | None:
        chooses = self.acts_at(plan, step) and self.kept(plan, plan.rank_batch) < plan.rank_batch
        return ("scale", int(plan.view(step) * self.scale)) if chooses else None


def choose_ranks(samples: int, count: int, keep: float, draws: np.random.Generator) -> np.ndarray:
    """Draw `count` of the ranks of `samples` losses (0 is the smallest) without replacement, int64 [count].

    The sample at percentile q has weight q ** (1 / keep - 1).
    """
    percentiles = (np.arange(samples) + 0.5) / samples
    weights = percentiles ** (1 / keep - 1)
    return draws.choice(samples, count, replace=False, p=weights / weights.sum())


@no_grad
def sample_losses(images: Tensor, targets: Tensor, model: nn.Module, loss: Loss, scale: float) -> Tensor:
    """Return the losses [B] of images [B, C, H, W], resized by `scale`, and class weights [B, classes].

    The model is in evaluation mode, which changes no statistics and uses no random layers.
    """
    if scale < 1:
        images = F.interpolate(images, scale_factor=scale, mode="bilinear")
    model.eval()
    logits = model(images)
    model.train()
    losses: Tensor = torch.vmap(lambda logit, target: loss(logit[None], target[None]))(logits, targets)
    return losses


class SelectiveBackprop(ForwardAlgorithm[SelectiveBackpropConfig]):
    """Keeps a fraction `keep` of every `interval`-th batch between `start` and `end`, and all of the others."""

    def forward_batch(self, batch: Batch, model: nn.Module, loss: Loss) -> Batch:
        from launcher.rank.group import broadcast_first

        moment, count = batch.moment, self.values.kept(self.context.plan, len(batch.inputs))
        if not self.values.acts_at(self.context.plan, moment.step) or count == len(batch.inputs):
            return batch
        targets = one_hot(batch.targets, self.context.classes)
        # note: checkpoints have the statistics of rank 0, from which a resumed run makes the same choice
        broadcast_first(model.buffers())
        with self.context.autocast():
            losses = sample_losses(batch.inputs, targets, model, loss, self.values.scale)
        draws = randomness.generator(moment.seed, "selective_backprop", moment.step, moment.rank)
        ranks = choose_ranks(len(batch.inputs), count, self.values.keep, draws)
        (chosen_ranks,) = to_device(ranks, device=batch.inputs.device)
        chosen = losses.argsort(stable=True)[chosen_ranks]
        return replace(batch, inputs=batch.inputs[chosen], targets=batch.targets[chosen], chosen=chosen)
