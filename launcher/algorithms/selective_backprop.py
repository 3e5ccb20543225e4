"""Selective backprop (Jiang et al. 2019): train on the samples of a batch that the model finds hard."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from launcher import randomness
from launcher.algorithms.base import ChoosingAlgorithm, Loss
from launcher.algorithms.progressive_resizing import interpolate
from launcher.config.batch_algorithms import SelectiveBackpropConfig
from launcher.data.batch import Batch, one_hot, to_device
from launcher.rank.group import broadcast_first


def choose_ranks(samples: int, count: int, keep: float, draws: np.random.Generator) -> np.ndarray:
    """Draw `count` of `samples` ranks of the loss (0 the smallest) without replacement, int64 [count].

    The sample at percentile q has weight q ** (1 / keep - 1).
    """
    percentiles = (np.arange(samples) + 0.5) / samples
    weights = percentiles ** (1 / keep - 1)
    return draws.choice(samples, count, replace=False, p=weights / weights.sum())


@torch.no_grad()
def sample_losses(images: Tensor, targets: Tensor, model: nn.Module, loss: Loss, scale: float) -> Tensor:
    """Losses [B] of images [B, C, H, W], resized by `scale`, and class weights [B, classes].

    The model evaluates, so that neither its statistics nor its random layers are touched.
    """
    if scale < 1:
        images = interpolate(images, scale_factor=scale)
    model.eval()
    logits = model(images)
    model.train()
    losses: Tensor = torch.vmap(lambda logit, target: loss(logit[None], target[None]))(logits, targets)
    return losses


class SelectiveBackprop(ChoosingAlgorithm[SelectiveBackpropConfig]):
    """Between `start` and `end`, every `interval`-th batch keeps its part `keep`; the others train whole."""

    def choose(self, batch: Batch, model: nn.Module, loss: Loss) -> Batch:
        moment, parts = batch.moment, self.context.plan.accumulation
        # note: the same on all ranks, in equal parts for the passes of an accumulated step
        count = max(1, int(self.values.keep * len(batch.images)) // parts) * parts
        if not self.values.acts_at(self.context.plan, moment.step) or count == len(batch.images):
            return batch
        targets = one_hot(batch.targets, self.context.classes)
        # note: each rank's own statistics are not saved; by these a resumed run chooses the same
        broadcast_first(model.buffers())
        with self.context.autocast():
            losses = sample_losses(batch.images, targets, model, loss, self.values.scale)
        draws = randomness.generator(moment.seed, "selective_backprop", moment.step, moment.rank)
        ranks = choose_ranks(len(batch.images), count, self.values.keep, draws)
        (places,) = to_device(ranks, device=batch.images.device)
        chosen = losses.argsort(stable=True)[places]
        return replace(batch, images=batch.images[chosen], targets=batch.targets[chosen], chosen=chosen)
