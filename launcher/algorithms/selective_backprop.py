"""Selective backprop (Jiang et al. 2019): train on the samples of a batch with high losses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from launcher.algorithms.base import Algorithm, Loss, Transform
from launcher.compute import randomness
from launcher.config.declaration import RunPlan, Size
from launcher.config.fields import STRICT, Count, Probability
from launcher.data.batch import Batch, one_hot
from launcher.errors import Problem
from launcher.later import F, no_grad, torch

if TYPE_CHECKING:
    from torch import Tensor, nn


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
    was_training = model.training
    model.eval()
    logits = model(images)
    model.train(was_training)
    losses: Tensor = torch.vmap(lambda logit, target: loss(logit[None], target[None]))(logits, targets)
    return losses


@dataclass(config=STRICT)
class SelectiveBackprop(
    Algorithm,
    change_batch=40,
    excludes={"sam": "SAM needs the same batch in both passes, but selective backprop selects samples in each"},
    acts_on=("image", "label"),
):
    """Keeps a fraction `keep` of every `interval`-th batch between `start` and `end`, and all of the others.

    Only the device has the choice, in the batch's `chosen`: later algorithms draw for all `indices` and select draws.
    """

    repeats_changes, runs_others = False, True

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

    def samples_after(self, plan: RunPlan, step: int, samples: int) -> int:
        """Return how many samples are left: the same on all ranks, in micro-batches of equal size."""
        parts = plan.accumulation
        return max(1, int(self.keep * samples) // parts) * parts if self.acts_at(plan, step) else samples

    def other_view(self, plan: RunPlan, step: int) -> tuple[str, int] | None:
        chooses = self.samples_after(plan, step, plan.rank_batch) < plan.rank_batch
        return ("scale", int(plan.view(step) * self.scale)) if chooses else None

    def bind(self, model: nn.Module, loss: Loss) -> None:
        self._model, self._loss = model, loss

    def change_batch(self, batch: Batch, size: Size) -> Transform | None:
        moment, samples = batch.moment, len(batch.inputs)
        count = self.samples_after(self.context.plan, moment.step, samples)
        if count == samples:
            return None
        draws = randomness.generator(moment.seed, "selective_backprop", moment.step, moment.rank)
        return Transform([choose_ranks(samples, count, self.keep, draws)], self._choose)

    def _choose(self, batch: Batch, ranks: Tensor) -> Batch:
        from launcher.rank.group import broadcast_first

        targets = one_hot(batch.targets, self.context.classes)
        # note: checkpoints have the statistics of rank 0, from which a resumed run makes the same choice
        broadcast_first(self._model.buffers())
        with self.context.autocast():
            losses = sample_losses(batch.inputs, targets, self._model, self._loss, self.scale)
        chosen = losses.argsort(stable=True)[ranks]
        return replace(batch, inputs=batch.inputs[chosen], targets=batch.targets[chosen], chosen=chosen)
