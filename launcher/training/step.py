"""One optimizer step: a loaded batch to changed weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from launcher.algorithms.engine import Engine
from launcher.data.batch import Batch, Moment
from launcher.data.device import normalize
from launcher.plan.plan import Plan
from launcher.training.losses import Loss
from launcher.training.optimizers import set_lr
from launcher.training.precision import Precision


class TrainStep:
    """The recipe's step: prepare the batch, compute gradients, update the weights.

    `model` is the network itself, `network` the same wrapped in DDP where there are several ranks.
    """

    def __init__(
        self,
        plan: Plan,
        model: nn.Module,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        engine: Engine,
        loss: Loss,
        precision: Precision,
    ):
        self.plan = plan
        self.model = model
        self.network = network
        self.optimizer = optimizer
        self.engine = engine
        self.loss = loss
        self.precision = precision
        self.scaler = precision.scaler()

    def __call__(self, images: Tensor, labels: Tensor, indices: np.ndarray, moment: Moment) -> Tensor:
        """One step on this rank's share of the global batch; returns the detached mean loss, on the device.

        images: uint8 [B, 3, H, W] and labels: int64 [B] on the device; indices: int64 [B] on the CPU.
        """
        batch = self.prepare(Batch(images, labels, indices, moment))
        set_lr(self.optimizer, self.plan.lr(moment.step))
        loss = self.engine.compute_gradients(batch, self.model, self.gradients)
        self.update()
        self.engine.after_step(self.model, moment)
        return loss

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
                    stack.enter_context(_frozen_statistics(self.model))
                with self.precision.autocast():
                    logits = self.network(images)
                loss = self.loss(logits, targets) / parts
                self.scaler.scale(loss).backward()
            total += loss.detach()
        return total

    def update(self) -> None:
        """Change the weights by the gradients; with a scaler, a non-finite gradient skips the step on all ranks."""
        if all(p.grad is None for p in self.model.parameters()):
            # note: an algorithm skipped the step, its gradients were not finite
            if self.scaler.is_enabled():
                self.scaler.update(self.scaler.get_scale() * self.scaler.get_backoff_factor())
            return
        self.scaler.unscale_(self.optimizer)
        self.engine.change_gradients(self.model)
        self.scaler.step(self.optimizer)
        self.scaler.update()


@contextmanager
def _frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Batch norm normalises by the batch but leaves its running statistics alone."""
    tracking = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    for module in tracking:
        module.track_running_stats = False
    try:
        yield
    finally:
        for module in tracking:
            module.track_running_stats = True
