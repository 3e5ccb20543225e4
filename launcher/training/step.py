"""Take one optimizer step: from a loaded batch to updated weights."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from launcher.accelerator import has_streams, skips_by_flag
from launcher.algorithms.base import Loss
from launcher.algorithms.engine import Changes, Engine
from launcher.data.batch import Batch, Moment
from launcher.foreach import Snapshot, gradients_of
from launcher.optimizers.base import MaskedOptimizer, set_lr
from launcher.plan.plan import Plan
from launcher.randomness import key
from launcher.rank.buckets import GradientBuckets
from launcher.rank.group import max_over_ranks
from launcher.rank.signs import HEARTBEAT, NO_REQUESTS, Requests
from launcher.tasks import Task
from launcher.training.captured import CapturedSteps
from launcher.training.meters import AsyncRead, StepOutcome
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


@dataclass(eq=False)
class TrainStep:
    """Prepares the batch, computes gradients and updates the weights, without host-device synchronization.

    A step that is not finite on any rank is dropped on all, and so are the following ones until the host has read its
    result: it finds the state before them, and repeats them. `model` is the network, `objective` adds the loss,
    and `network` wraps that in DDP for several ranks, unless `buckets` average their gradients.
    """

    plan: Plan
    model: nn.Module
    task: Task
    distribute: Callable[[nn.Module], nn.Module]
    optimizer: MaskedOptimizer[Any]
    engine: Engine
    precision: Precision
    loss: Loss
    buckets: GradientBuckets | None = None
    captured: CapturedSteps | None = None

    def __post_init__(self) -> None:
        self.objective = Objective(self.model, self.engine.change_loss(self.loss), self.precision.autocast)
        self.scaler = self.precision.scaler()
        self._parameters = list(self.model.parameters())
        device = self._parameters[0].device
        self._pins, self._skips_by_flag = has_streams(device), skips_by_flag(device)
        self._wrap()
        norms = [one for one in self.model.modules() if isinstance(one, nn.modules.batchnorm._BatchNorm)]
        self._statistics = Snapshot(buffer for norm in norms for buffer in norm.buffers())
        # note: at the same address in every step, as captured steps need
        self._numbers = torch.zeros(3, device=device)
        self._held = torch.zeros_like(self._numbers[0])
        self._one = torch.ones_like(self._held)

    def __call__(
        self, inputs: Tensor, labels: Tensor, indices: np.ndarray, moment: Moment, requests: Requests = NO_REQUESTS
    ) -> StepOutcome:
        """Take one step on this rank's samples of the global batch.

        inputs, labels: as loaded, on the device; indices: int64 [B] on the CPU.
        """
        if self.plan.config.model.draws or self.plan.config.code:
            # note: such as timm's dropout and stochastic depth, or a loss of the user's
            torch.manual_seed(key(moment.seed, "dropout", moment.step, moment.rank))
        torch.backends.cudnn.benchmark = self.plan.view(moment.step) in self.plan.tuned_views
        self._choose_parameters(moment)
        if self.captured:
            self.captured.start_step(self.plan.view(moment.step))
        batch = self.prepare(Batch(inputs, labels, indices, moment))
        self._send(self.plan.lr(moment.step), requests)
        values, flags, applied = (
            self._train_on(batch) if self._averages_after else self._by_graphs(self._train_on, batch)
        )
        self.engine.after_step(self.model, moment, applied)
        HEARTBEAT.beat()
        loss_and_count = torch.stack([values[0], self._one]).masked_fill_(flags[0] > 0, 0)
        return StepOutcome(moment, indices, loss_and_count, AsyncRead(torch.cat([values, flags])), self.release)

    def _choose_parameters(self, moment: Moment) -> None:
        """Set which parameters learn; a change needs a new DDP, which expects the gradients of all of them."""
        self.engine.before_step(self.model, moment)
        if self.engine.changing_parameters and self.learning() != self._wrapped:
            self._wrap()

    def _wrap(self) -> None:
        self.network = self.objective if self.buckets else self.distribute(self.objective)
        self._wrapped = self.learning()

    def learning(self) -> tuple[bool, ...]:
        """Return whether each parameter learns."""
        return tuple(parameter.requires_grad for parameter in self.model.parameters())

    def _train_on(self, batch: Batch) -> Sequence[Tensor]:
        """Run forward, backward and update; return loss and gradient norm [2], flags [4], and whether applied []."""
        self.scaler.start_step()
        self._statistics.take()
        if self.buckets and self._averages_after:
            (loss,) = self._by_graphs(self._fill_buckets, batch)
            self.buckets.average()
        else:
            loss = self._compute_gradients(batch)
        self.scaler.unscale_(self.optimizer)
        values = torch.stack([loss, nn.utils.get_total_norm(gradients_of(self._parameters))])
        flags = self._flags(values)
        applied = self._update(flags, batch.moment) == 0
        # note: the forward pass of a dropped step has changed the running statistics
        self._statistics.restore_unless(applied)
        return values, flags, applied

    def _compute_gradients(self, batch: Batch) -> Tensor:
        """Compute the gradients and return the loss."""
        self.optimizer.step_number = batch.moment.step
        self.optimizer.before_gradients(partial(self._forward, batch))
        with frozen_statistics(self.model) if self.optimizer.updates_statistics else nullcontext():
            return self.engine.compute_gradients(batch, self.model, self.gradients)

    def _forward(self, batch: Batch) -> None:
        for inputs, targets in self._micro_batches(batch):
            self.objective(inputs, targets)

    @property
    def _averages_after(self) -> bool:
        """Return whether graphs end before the all-reduce of the gradients, as those with it cannot be captured."""
        return self.buckets is not None and self.captured is not None and not self.captured.can_reduce

    def _fill_buckets(self, batch: Batch) -> Sequence[Tensor]:
        """Compute this rank's gradients for the all-reduce, and return the loss."""
        assert self.buckets is not None
        loss = self._compute_gradients(batch)
        self.buckets.fill()
        return [loss]

    def _by_graphs(self, function: Callable[[Batch], Sequence[Tensor]], batch: Batch) -> Sequence[Tensor]:
        """Return what a function computes of a batch, by CUDA graphs if the run captures them.

        There is one for each set of algorithms that compute or change gradients at the step.
        """
        if self.captured is None:
            return function(batch)
        algorithms = self.plan.config.algorithms
        inside = [*algorithms.acting("compute_gradients"), *algorithms.acting("change_gradients")]
        kind = tuple(algorithms[name].acts_at(self.plan, batch.moment.step) for name in inside)
        together, tensors = self.buckets is not None and not self._averages_after, (batch.inputs, batch.targets)
        outputs = self.captured(
            kind, lambda x, y: function(replace(batch, inputs=x, targets=y)), *tensors, together=together
        )
        return [output.clone() for output in outputs]

    def _change_by_graphs(self, changes: Changes, batch: Batch) -> Batch:
        """Return the batch after changes, by a CUDA graph for each set of transforms."""
        assert self.captured is not None

        def change(inputs: Tensor, targets: Tensor, packed: Tensor) -> Sequence[Tensor]:
            changed = changes.apply(replace(batch, inputs=inputs, targets=targets), packed)
            return changed.inputs, changed.targets

        tensors = batch.inputs, batch.targets, changes.packed
        inputs, targets = self.captured(("changes", changes.kind), change, *tensors)
        return replace(batch, inputs=inputs, targets=targets)

    def capture(self, captured: CapturedSteps) -> None:
        """Train by CUDA graphs from now on."""
        self.captured = captured
        # note: NCCL requires that all ranks capture a collective, or none
        captured.can_reduce = self.buckets is not None and self.engine.alike_on_ranks
        if self.engine.can_repeat_changes:
            self.engine.apply = self._change_by_graphs

    def release(self) -> None:
        """Apply steps again after one that was not finite."""
        self._held.zero_()

    def prepare(self, batch: Batch) -> Batch:
        """Make the task's targets from labels; change and prepare the batch in the order of the plan."""
        batch = replace(batch, targets=self.task.targets(batch.targets))
        return self.engine.change_batch(batch, self.model, self.loss, self.task.prepare)

    def gradients(self, batch: Batch, *, synchronize: bool = True, update_statistics: bool = True) -> Tensor:
        """Run forward and backward in `accumulation` micro-batches; leaves scaled gradients in `.grad`."""
        self.optimizer.zero_grad(set_to_none=True)
        count = self.plan.accumulation
        total: Tensor | None = None
        for number, (inputs, targets) in enumerate(self._micro_batches(batch), 1):
            with ExitStack() as stack:
                if not (synchronize and number == count):
                    if isinstance(self.network, DistributedDataParallel):
                        stack.enter_context(self.network.no_sync())
                elif self.buckets and not self._averages_after:
                    stack.enter_context(self.buckets.averaging())
                if not update_statistics:
                    stack.enter_context(frozen_statistics(self.model))
                loss: Tensor = self.network(inputs, targets)
                if count > 1:
                    loss = loss / count
                self.scaler.scale(loss).backward()
            total = loss.detach() if total is None else total + loss.detach()
        assert total is not None
        return total

    def _micro_batches(self, batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
        count = self.plan.accumulation
        return zip(batch.inputs.chunk(count), batch.targets.chunk(count), strict=True)

    def _send(self, lr: float, requests: Requests) -> None:
        """Copy the host's values of this step to the device asynchronously."""
        numbers = torch.tensor([lr, requests.stop, requests.save], dtype=torch.float32)
        self._numbers.copy_(numbers.pin_memory() if self._pins else numbers, non_blocking=True)
        set_lr(self.optimizer, self._numbers[0])

    def _flags(self, values: Tensor) -> Tensor:
        """Return float32 [4], equal on all ranks: not finite, to be dropped, stop requested, checkpoint requested.

        values: the loss and the gradient norm [2]. A step whose gradients overflow in fp16 is dropped but counts as
        finite while the loss scaler can lower its scale.
        """
        bad = (values - values) != 0  # note: fewer kernels than isfinite
        counting = bad.any().expand(2)
        if self.scaler.is_enabled():
            counting = torch.stack([bad[0] | (bad[1] & self.scaler.counts()), counting[1]])
        return max_over_ranks(torch.cat([counting.float(), self._numbers[1:]]))

    def _update(self, flags: Tensor, moment: Moment) -> Tensor:
        """Update the weights unless the step is dropped; return whether it is, float32 []."""
        dropped = torch.maximum(flags[1], self._held)
        self.engine.change_gradients(self.model, moment)
        self.optimizer.found_inf = dropped if self._skips_by_flag else None
        # note: the host reads the flag only where the device cannot
        if self._skips_by_flag or not dropped:
            self.optimizer.step()
        if self.scaler.is_enabled():
            self.scaler.conclude(self.optimizer, dropped, self._held)
        torch.maximum(self._held, flags[0], out=self._held)
        return dropped
