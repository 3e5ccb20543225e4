"""One optimizer step: a loaded batch to changed weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from launcher.algorithms.engine import Engine
from launcher.data.batch import Batch, Moment, normalize
from launcher.plan.plan import Plan
from launcher.rank.heartbeat import HEARTBEAT
from launcher.rank.peers import by_dtype, everywhere, global_norm, gradients_of
from launcher.training.losses import Loss, Objective
from launcher.training.optimizers import set_lr
from launcher.training.precision import Precision


@dataclass(frozen=True)
class StepOutcome:
    """What a step did; one that is not finite has left everything as it was.

    indices: int64 [B], the samples of this rank. loss: their mean [], detached, on the device. finite: whether loss and
    gradients were, on all ranks.
    """

    moment: Moment
    indices: np.ndarray
    loss: Tensor
    finite: bool


class TrainStep:
    """The recipe's step: prepare the batch, compute gradients, update the weights.

    `model` is the network itself, `objective` with its loss, and `network` that wrapped in DDP where there are several
    ranks. `lr_factor` multiplies the schedule's learning rate.
    """

    def __init__(
        self,
        plan: Plan,
        model: nn.Module,
        objective: Objective,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        engine: Engine,
        precision: Precision,
    ):
        self.plan = plan
        self.model = model
        self.objective = objective
        self.network = network
        self.optimizer = optimizer
        self.engine = engine
        self.precision = precision
        self.scaler = precision.scaler()
        self.lr_factor = 1.0
        self._statistics = by_dtype(_statistics(model))

    def __call__(self, images: Tensor, labels: Tensor, indices: np.ndarray, moment: Moment) -> StepOutcome:
        """One step on this rank's share of the global batch.

        images: uint8 [B, 3, H, W] and labels: int64 [B] on the device; indices: int64 [B] on the CPU.
        """
        self.engine.before_step(self.model, moment)
        batch = self.prepare(Batch(images, labels, indices, moment))
        set_lr(self.optimizer, self.plan.lr(moment.step) * self.lr_factor)
        before = [torch._foreach_mul(group, 1) for group in self._statistics]  # note: copies in one launch, bit for bit
        loss = self.engine.compute_gradients(batch, self.model, self.gradients)
        finite = self._is_finite(loss)
        if finite:
            self.update()
            self.engine.after_step(self.model, moment)
        else:
            # note: the forward pass has already spoiled the running statistics
            for group, values in zip(self._statistics, before, strict=True):
                torch._foreach_copy_(group, values)
            self._lower_scale()
        HEARTBEAT.beat()
        return StepOutcome(moment, indices, loss, finite)

    @property
    def loss(self) -> Loss:
        return self.objective.loss

    def prepare(self, batch: Batch) -> Batch:
        """Augment, normalise, resize and mix, in the order of the plan."""
        return self.engine.change_batch(batch, self.model, self.loss, self.normalize)

    def normalize(self, images: Tensor) -> Tensor:
        """uint8 images to floating point of the data set's mean 0 and deviation 1."""
        dataset = self.plan.config.dataset
        return normalize(images, dataset.mean, dataset.std, torch.float32)

    def gradients(self, batch: Batch, *, synchronize: bool = True, update_statistics: bool = True) -> Tensor:
        """Forward and backward in `accumulation` equal parts; gradients are left in `.grad`, scaled by the scaler."""
        self.optimizer.zero_grad(set_to_none=True)
        parts = self.plan.accumulation
        total = torch.zeros((), device=batch.images.device)
        for number, (images, targets) in enumerate(
            zip(batch.images.chunk(parts), batch.targets.chunk(parts), strict=True), 1
        ):
            with ExitStack() as stack:
                if not (synchronize and number == parts) and isinstance(self.network, DistributedDataParallel):
                    stack.enter_context(self.network.no_sync())
                if not update_statistics:
                    stack.enter_context(frozen_statistics(self.model))
                loss = self.network(images, targets) / parts
                self.scaler.scale(loss).backward()
            total += loss.detach()
        return total

    def update(self) -> None:
        """Change the weights by the gradients; with a scaler, gradients that overflow skip it on all ranks."""
        self.scaler.unscale_(self.optimizer)
        self.engine.change_gradients(self.model)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def _is_finite(self, loss: Tensor) -> bool:
        """On all ranks; an overflow of gradients that the scaler will mend by a smaller scale counts as finite."""
        finite = loss.isfinite()
        if not (self.scaler.is_enabled() and self.scaler.get_scale() > 1):
            finite = finite & global_norm(gradients_of(self.model)).isfinite()
        # note: one wait for the device a step; what comes after depends on the answer
        return everywhere(finite)

    def _lower_scale(self) -> None:
        if self.scaler.is_enabled():
            self.scaler.update(self.scaler.get_scale() * self.scaler.get_backoff_factor())


def _statistics(model: nn.Module) -> list[Tensor]:
    """What a forward pass changes: the running statistics of batch norm."""
    return [b for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) for b in m.buffers()]


@contextmanager
def frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Batch norm normalises by the batch but leaves its running statistics alone."""
    tracking = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    for module in tracking:
        module.track_running_stats = False
    try:
        yield
    finally:
        for module in tracking:
            module.track_running_stats = True
