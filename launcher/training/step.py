"""Take one optimizer step: from a loaded batch to updated weights."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from launcher.algorithms.base import Loss
from launcher.algorithms.engine import Changes, Engine, sent
from launcher.compute.accelerator import drops_by_flag, has_streams
from launcher.compute.foreach import Snapshot, gradients_of
from launcher.compute.randomness import key
from launcher.data.batch import Batch, Moment
from launcher.optimizers.base import MaskedOptimizer, set_lr
from launcher.plan.plan import Plan
from launcher.rank.group import max_over_ranks
from launcher.rank.signs import HEARTBEAT, NO_REQUESTS, Requests
from launcher.tasks import Task
from launcher.training.buckets import GradientBuckets
from launcher.training.captured import CapturedSteps
from launcher.training.meters import StepOutcome
from launcher.training.norm_statistics import frozen_statistics
from launcher.training.precision import Precision


class Objective(nn.Module):
    """Computes the mean loss [] of prepared inputs [B, ...] and their targets, with the model in autocast."""

    def __init__(self, model: nn.Module, loss: Loss, autocast: Callable[[], AbstractContextManager[object]]):
        super().__init__()
        self.model, self.loss, self.autocast = model, loss, autocast

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        with self.autocast():
            outputs = self.model(inputs)
        return self.loss(outputs, targets)


class Preparation(nn.Module):
    """Computes changes of a batch; compiled, it fuses them into few passes."""

    def change(self, changes: Changes, batch: Batch) -> Batch:
        """Return a batch after changes."""
        transforms = sent(changes.transforms, changes.packed)
        applies, tensors = [one.apply for one, _ in transforms], [own for _, own in transforms]
        inputs, targets = self(batch.inputs, batch.targets, batch.indices, batch.moment, applies, tensors)
        return replace(batch, inputs=inputs, targets=targets)

    def forward(
        self,
        inputs: Tensor,
        targets: Tensor,
        indices: np.ndarray,
        moment: Moment,
        applies: list[Callable[..., Batch]],
        tensors: list[list[Tensor]],
    ) -> tuple[Tensor, Tensor]:
        batch = Batch(inputs, targets, indices, moment)
        for apply, own in zip(applies, tensors, strict=True):
            batch = apply(batch, *own)
        return batch.inputs, batch.targets


@dataclass(eq=False)
class TrainStep:
    """Prepares the batch, computes gradients and updates the weights, without host-device synchronization.

    A step that is not finite on any rank is dropped on all, and so are the following ones until the host has read its
    result: it finds the state before them, and repeats them. Averages are updated by `engine.after_step` once the host
    has read that the step was not dropped. `buckets` average the gradients of several ranks; with `captured` CUDA
    graphs repeat the changes of a batch and the training.
    """

    plan: Plan
    model: nn.Module
    task: Task
    optimizer: MaskedOptimizer
    engine: Engine
    precision: Precision
    loss: Loss
    buckets: GradientBuckets | None = None
    captured: CapturedSteps | None = None

    def __post_init__(self) -> None:
        self.engine.bind(self.model, self.loss)
        self.objective = Objective(self.model, self.engine.change_loss(self.loss), self.precision.autocast)
        self.preparation = Preparation()
        self.scaler = self.precision.scaler()
        self._parameters = list(self.model.parameters())
        device = self._parameters[0].device
        self._pins, self._drops_by_flag = has_streams(device), drops_by_flag(device)
        norms = [one for one in self.model.modules() if isinstance(one, nn.modules.batchnorm._BatchNorm)]
        self._statistics = Snapshot(buffer for norm in norms for buffer in norm.buffers())
        # note: at the same address in every step, as captured steps need
        self._numbers = torch.zeros(3, device=device)
        self._dropping = torch.zeros_like(self._numbers[0])

    def __call__(
        self, inputs: Tensor, labels: Tensor, indices: np.ndarray, moment: Moment, requests: Requests = NO_REQUESTS
    ) -> StepOutcome:
        """Take one step on this rank's samples of the global batch.

        inputs, labels: as loaded, on the device; indices: int64 [B] on the CPU.
        """
        view, lr = self.plan.view(moment.step), self.plan.lr(moment.step)
        if self.plan.config.model.draws or self.plan.config.code:
            # note: such as timm's dropout and stochastic depth, or a loss of the user's
            torch.manual_seed(key(moment.seed, "dropout", moment.step, moment.rank))
        torch.backends.cudnn.benchmark = view in self.plan.tuned_views
        self.engine.before_step(self.model, moment)
        if self.captured:
            self.captured.start_step(view)
        batch = self.prepare(Batch(inputs, labels, indices, moment))
        numbers = torch.tensor([lr, requests.stop, requests.save], dtype=torch.float32)
        self._numbers.copy_(numbers.pin_memory() if self._pins else numbers, non_blocking=True)
        self.optimizer.step_number, self.optimizer.rate = moment.step, float(np.float32(lr))
        set_lr(self.optimizer, self._numbers[0])
        values = self._replay(self.captured, batch) if self.captured else self.train(batch)
        HEARTBEAT.beat()
        return StepOutcome(moment, indices, values, self._dropping.zero_)

    def prepare(self, batch: Batch) -> Batch:
        """Make the task's targets from labels; change and prepare the batch in the order of the plan."""
        batch = replace(batch, targets=self.task.targets(batch.targets))
        apply = self.captured.change if self.captured and self.engine.can_repeat_changes else self.preparation.change
        return self.engine.change_batch(batch, self.task.prepare, apply)

    def _replay(self, captured: CapturedSteps, batch: Batch) -> Tensor:
        """Train by a graph for each set of algorithms that compute or change gradients at the step."""
        kind, together = self.engine.kind(batch.moment.step), self.buckets is not None
        step = lambda inputs, targets: [self.train(replace(batch, inputs=inputs, targets=targets))]  # noqa: E731
        return captured(kind, step, batch.inputs, batch.targets, together=together)[0].clone()

    def train(self, batch: Batch) -> Tensor:
        """Run forward, backward and update on a prepared batch; return the values of `StepOutcome`."""
        self.scaler.start_step()
        self._statistics.take()
        self.optimizer.before_gradients(partial(self._forward, batch))
        with frozen_statistics(self.model, frozen=self.optimizer.updates_statistics):
            loss = self.engine.compute_gradients(batch, self.model, self.gradients)
        self.scaler.unscale_(self.optimizer)
        values = torch.stack([loss, nn.utils.get_total_norm(gradients_of(self._parameters))])
        flags = self._flags(values)
        dropped = torch.maximum(flags[1], self._dropping)
        self.engine.change_gradients(self.model, batch.moment)
        self.optimizer.found_inf = dropped if self._drops_by_flag else None
        # note: the host reads the flag only where the device cannot
        if self._drops_by_flag or not dropped:
            self.optimizer.step()
        if self.scaler.is_enabled():
            self.scaler.conclude(self.optimizer, dropped, self._dropping)
        # note: the forward pass of a dropped step has changed the running statistics
        self._statistics.restore_unless(dropped == 0)
        torch.maximum(self._dropping, flags[0], out=self._dropping)
        return torch.cat([values, flags[:1], dropped[None], flags[2:]])

    def gradients(self, batch: Batch, *, synchronize: bool = True, update_statistics: bool = True) -> Tensor:
        """Run forward and backward in `accumulation` micro-batches; leaves scaled gradients in `.grad`."""
        self.optimizer.zero_grad(set_to_none=True)
        count, losses = self.plan.accumulation, list[Tensor]()
        with frozen_statistics(self.model, frozen=not update_statistics):
            for inputs, targets in self._micro_batches(batch):
                is_last = len(losses) == count - 1
                with self.buckets.averaging() if self.buckets and synchronize and is_last else nullcontext():
                    loss: Tensor = self.objective(inputs, targets)
                    if count > 1:
                        loss = loss / count
                    self.scaler.scale(loss).backward()
                losses.append(loss.detach())
        return sum(losses[1:], losses[0])

    def _forward(self, batch: Batch) -> None:
        for inputs, targets in self._micro_batches(batch):
            self.objective(inputs, targets)

    def _micro_batches(self, batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
        count = self.plan.accumulation
        return zip(batch.inputs.chunk(count), batch.targets.chunk(count), strict=True)

    def _flags(self, values: Tensor) -> Tensor:
        """Return float32 [4], equal on all ranks: not finite, to be dropped, stop requested, checkpoint requested.

        values: the loss and the gradient norm [2]. A step whose gradients overflow in fp16 is dropped but counts as
        finite while the loss scaler can lower its scale.
        """
        overflows = (values - values) != 0  # note: fewer kernels than isfinite
        counting = overflows.any().expand(2)
        if self.scaler.is_enabled():
            counting = torch.stack([overflows[0] | (overflows[1] & self.scaler.counts()), counting[1]])
        return max_over_ranks(torch.cat([counting.float(), self._numbers[1:]]))
