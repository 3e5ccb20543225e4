"""Sample dropping (Qin et al. 2024, InfoBatch; Sathiyanarayanan et al. 2025): epochs without some easy samples."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic.dataclasses import dataclass

from launcher import randomness
from launcher.algorithms.base import Context, ForwardAlgorithm, Loss
from launcher.config.declaration import AlgorithmConfig, RunPlan
from launcher.config.fields import STRICT, Fraction, Probability
from launcher.data.batch import Batch, Moment, one_hot, to_device
from launcher.errors import Problem
from launcher.later import nn, no_grad, torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, config=STRICT)
class SampleDroppingConfig(
    AlgorithmConfig,
    change_loss=90,
    change_order=20,
    change_batch=99,
    after_step=30,
    excludes={
        "repeated_augmentation": "sample dropping reads each sample at most once an epoch",
        "sam": "SAM's second pass has another loss of each sample",
        "selective_backprop": "both drop samples of small loss; use one",
    },
    acts_on=("image", "label"),
):
    """`infobatch` drops `share` of the samples, each easy one with probability `rate` at most.

    `progressive` keeps the hardest `decay ^ epoch` of the samples. Both read all from the fraction `end` of the epochs
    on, rounded down.
    """

    policy: Literal["infobatch", "progressive"]
    share: Fraction
    rate: Fraction
    decay: Fraction
    end: Probability

    def epoch_fraction(self, plan: RunPlan, epoch: int) -> float:
        # note: no sample has a loss before the first epoch; the tolerance keeps 0.7 of 10 epochs at 7
        if epoch == 0 or epoch >= int(self.end * plan.epochs + 1e-9):
            return 1.0
        return 1 - self.share if self.policy == "infobatch" else self.decay**epoch

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        if self.policy == "infobatch" and self.share > self.rate:
            message = f"must be at most rate ({self.rate:g}): no sample is dropped with a greater probability"
            yield Problem(message, "share", self.share)
        if plan.config.dataset.sampling != "uniform":
            message = f"needs each sample once an epoch; set dataset.sampling=uniform or algorithms.{self.name}=off"
            yield Problem(message, "policy", self.policy)


# which samples are kept, bool [N], and the weights of their losses, float32 [N]
Choice = tuple[np.ndarray, np.ndarray]


def by_loss(losses: np.ndarray, draws: np.random.Generator) -> np.ndarray:
    """Return the samples from the smallest loss [N] to the largest, equal ones in random order; NaN is the largest."""
    return np.asarray(np.lexsort((draws.random(len(losses)), np.nan_to_num(losses, nan=np.inf))))


def infobatch(losses: np.ndarray, count: int, rate: float, draws: np.random.Generator) -> Choice:
    """Drop `count` of the easy samples of losses [N], without replacement, and weigh the other easy ones more.

    Easy are those below the mean of known losses, or the `count / rate` smallest if these are more. Each is kept with
    the probability 1 / weight, so the expected sum of weighted losses is that of all samples.
    """
    known = losses[~np.isnan(losses)]
    below = int((known < known.mean(dtype=np.float64)).sum()) if len(known) else 0
    easy = by_loss(losses, draws)[: max(below, math.ceil(count / rate - 1e-9))]
    kept, weights = np.ones(len(losses), bool), np.ones(len(losses), np.float32)
    kept[draws.permutation(easy)[:count]] = False
    weights[easy] = len(easy) / max(1, len(easy) - count)
    return kept, weights


def progressive(losses: np.ndarray, count: int, draws: np.random.Generator) -> Choice:
    """Drop the `count` samples of the smallest losses [N]."""
    kept = np.ones(len(losses), bool)
    kept[by_loss(losses, draws)[:count]] = False
    return kept, np.ones(len(losses), np.float32)


class SampleDropping(ForwardAlgorithm[SampleDroppingConfig]):
    """Chooses an epoch's samples by the last losses of all, which are those of training steps, before weighting.

    The number of dropped samples is a function of the epoch, in whole batches, so the plan has all steps before the
    run starts. Targets have two more columns, [B, classes + 2]: the place in the rank's batch and the weight. `_losses`
    are those of the rank's last batch [B], and `_fresh` those of the epoch [N], -inf for samples of other ranks and
    later steps. Ranks merge them when the next epoch starts, and in checkpoints.
    """

    def __init__(self, values: SampleDroppingConfig, context: Context):
        super().__init__(values, context)
        samples = context.plan.train_samples
        self._epoch, self._scores = 0, np.full(samples, np.nan, np.float32)
        self._weights = np.ones(samples, np.float32)
        self._fresh: Tensor | None = None
        self._losses: Tensor | None = None

    def change_order(self, order: np.ndarray, moment: Moment) -> np.ndarray:
        if moment.epoch != self._epoch:
            fresh = self._merged().cpu().numpy()
            self._scores, self._fresh = np.where(np.isneginf(fresh), self._scores, fresh), None
            self._epoch = moment.epoch
        plan, values = self.context.plan, self.values
        count = (plan.steps_per_epoch - plan.epoch_steps.length(moment.epoch)) * plan.batch_size
        draws = randomness.generator(moment.seed, "sample_dropping", moment.epoch)
        if values.policy == "infobatch":
            kept, self._weights = infobatch(self._scores, count, values.rate, draws)
        else:
            kept, self._weights = progressive(self._scores, count, draws)
        return np.asarray(order[kept[order]])

    def forward_batch(self, batch: Batch, model: nn.Module, loss: Loss) -> Batch:
        places, indices = np.arange(len(batch.indices), dtype=np.float32), batch.indices % len(self._scores)
        columns = np.stack([places, self._weights[indices]], 1)
        added, self._indices = to_device(columns, indices, device=batch.inputs.device)
        # note: at the same address in every step, as captured steps need
        if self._losses is None:
            self._losses = torch.zeros(len(indices), device=added.device)
        return replace(batch, targets=torch.cat([one_hot(batch.targets, self.context.classes).float(), added], 1))

    def change_loss(self, loss: Loss) -> Loss:
        def weighted(outputs: Tensor, targets: Tensor) -> Tensor:
            assert self._losses is not None
            losses = torch.vmap(lambda output, target: loss(output[None], target[None]))(outputs, targets[:, :-2])
            self._losses.index_copy_(0, targets[:, -2].long(), losses.detach().float())
            return (losses * targets[:, -1]).mean()

        return weighted

    @no_grad
    def after_step(self, model: nn.Module, moment: Moment, applied: Tensor) -> None:
        if self._fresh is None:
            self._fresh = self._unread(applied.device)
        if self._fresh.device != applied.device:
            (self._fresh,) = to_device(self._fresh.numpy(), device=applied.device)
        assert self._losses is not None
        self._fresh[self._indices] = torch.where(applied, self._losses, self._fresh[self._indices])

    def _unread(self, device: torch.device | None = None) -> Tensor:
        return torch.full((len(self._scores),), -math.inf, device=device)

    def _merged(self) -> Tensor:
        """Return a copy of the epoch's losses of all ranks [N], which call this together."""
        from launcher.rank.group import max_over_ranks

        return max_over_ranks(self._unread() if self._fresh is None else self._fresh.clone())

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "scores": torch.from_numpy(self._scores), "fresh": self._merged()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._epoch, self._scores, self._fresh = state["epoch"], state["scores"].cpu().numpy(), state["fresh"]
