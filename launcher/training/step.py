"""One optimizer step: a loaded batch to changed weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from launcher.algorithms.engine import Engine
from launcher.algorithms.masked import Restorable
from launcher.config.choices import ScheduleFreeAdamWConfig
from launcher.config.models import TimmModel
from launcher.data.batch import Batch, Moment, normalize
from launcher.optimizers.adaptive import ScheduleFreeAdamW
from launcher.optimizers.build import set_lr
from launcher.plan.plan import Plan
from launcher.randomness import key
from launcher.rank.heartbeat import HEARTBEAT
from launcher.rank.peers import global_norm, gradients_of, highest
from launcher.rank.stop import NOTHING, Asked
from launcher.training.captured import CapturedSteps
from launcher.training.late import HostCopy
from launcher.training.losses import Loss, Objective
from launcher.training.precision import Precision


@dataclass(frozen=True)
class StepReport:
    """What the host learns of a step.

    loss: this rank's. gradient_norm: of the averaged gradients. finite: whether both were, on all ranks. asked: of any
    rank, when the step began.
    """

    loss: float
    gradient_norm: float
    finite: bool
    asked: Asked


@dataclass(frozen=True)
class StepOutcome:
    """A step that the device was given; one that is not finite leaves everything as it was.

    indices: int64 [B], the samples of this rank. counted: their mean loss and 1, or twice 0 where the step is not
    finite, float32 [2] on the device. values: on their way to the host. release: lets go on a device that leaves out
    all steps since this one.
    """

    moment: Moment
    indices: np.ndarray
    counted: Tensor
    values: HostCopy
    release: Callable[[], None]

    def report(self) -> StepReport:
        """What became of the step; waits for the device to be done with it, and for nothing it was given since."""
        loss, norm, bad, _, stop, save = self.values.read()
        if bad:
            self.release()
        return StepReport(loss, norm, not bad, Asked(bool(stop), bool(save)))


class TrainStep:
    """The recipe's step: prepare the batch, compute gradients, update the weights; the host only gives orders.

    A step that is not finite on some rank is left out on all. So are all steps after it until the host has read of it:
    it finds the state of before, and takes them again. `model` is the network itself, `objective` with its loss, and
    `network` that wrapped in DDP where there are several ranks. `lr_factor` multiplies the schedule's learning rate.
    """

    def __init__(
        self,
        plan: Plan,
        model: nn.Module,
        objective: Objective,
        distribute: Callable[[nn.Module], nn.Module],
        optimizer: torch.optim.Optimizer,
        engine: Engine,
        precision: Precision,
    ):
        self.plan = plan
        self.model = model
        self.objective = objective
        self._distribute = distribute
        self._exchange()
        self.optimizer = optimizer
        self.engine = engine
        self.precision = precision
        self.scaler = precision.scaler()
        self.lr_factor = 1.0
        self.captured: CapturedSteps | None = None
        self._statistics = Restorable(_statistics(model))
        # note: in the same memory at every step, as a captured one needs
        self._numbers = torch.zeros(3, device=next(model.parameters()).device)
        self._held = torch.zeros_like(self._numbers[0])
        self._one = torch.ones_like(self._held)

    def __call__(
        self, images: Tensor, labels: Tensor, indices: np.ndarray, moment: Moment, asked: Asked = NOTHING
    ) -> StepOutcome:
        """One step on this rank's share of the global batch.

        images: uint8 [B, 3, H, W] and labels: int64 [B] on the device; indices: int64 [B] on the CPU.
        """
        if isinstance(self.plan.config.model, TimmModel):
            # note: its dropout and stochastic depth draw from torch's generators
            torch.manual_seed(key(moment.seed, "dropout", moment.step, moment.rank))
        self._choose_what_learns(moment)
        batch = self.prepare(Batch(images, labels, indices, moment))
        self._send(self.plan.lr(moment.step) * self.lr_factor, asked)
        values, flags, applied = self._captured(batch) if self.captured else self._train_on(batch)
        self.engine.after_step(self.model, moment, applied)
        HEARTBEAT.beat()
        counted = torch.stack([values[0], self._one]).masked_fill_(flags[0] > 0, 0)
        return StepOutcome(moment, indices, counted, HostCopy(torch.cat([values, flags])), self.release)

    def _choose_what_learns(self, moment: Moment) -> None:
        """Before the step; DDP waits for the gradients of all parameters that learned when it was made."""
        if not self.engine.changing_parameters:
            return
        self.engine.before_step(self.model, moment)
        if self.learning() != self._exchanged:
            self._exchange()

    def _exchange(self) -> None:
        self.network, self._exchanged = self._distribute(self.objective), self.learning()

    def learning(self) -> tuple[bool, ...]:
        """Whether each parameter learns."""
        return tuple(parameter.requires_grad for parameter in self.model.parameters())

    def _train_on(self, batch: Batch) -> Sequence[Tensor]:
        """Forward, backward and update: the loss and the gradients' norm [2], flags [4], and if it is applied [].

        What a step is told by the host lies in the same memory at every step; no number of the host's goes in here.
        """
        self._statistics.keep()
        loss = self._gradients_and_statistics(batch)
        self.scaler.unscale_(self.optimizer)
        values = torch.stack([loss, global_norm(gradients_of(self.model))])
        flags = self._flags(values)
        left_out = self._update(flags, batch.moment)
        applied = left_out == 0
        # note: the forward pass has already spoiled the running statistics
        self._statistics.put_back_unless(applied)
        return values, flags, applied

    def _gradients_and_statistics(self, batch: Batch) -> Tensor:
        """Compute the gradients; returns the loss. Statistics of batch norm are of the weights that are evaluated."""
        optimizer, config = self.optimizer, self.plan.config.optimizer
        if not (isinstance(optimizer, ScheduleFreeAdamW) and isinstance(config, ScheduleFreeAdamWConfig)):
            return self.engine.compute_gradients(batch, self.model, self.gradients)
        if config.acts_at(self.plan, batch.moment.step):
            with optimizer.at_average():
                for images, targets in self._parts(batch):
                    self.objective(images, targets)
        with frozen_statistics(self.model):
            return self.engine.compute_gradients(batch, self.model, self.gradients)

    def _captured(self, batch: Batch) -> Sequence[Tensor]:
        """The same by a graph, one for each way to compute gradients."""
        assert self.captured is not None
        algorithms = self.plan.config.algorithms
        active, ways = algorithms.active(), algorithms.acting("compute_gradients")
        kind = tuple(active[name].acts_at(self.plan, batch.moment.step) for name in ways)

        def work(images: Tensor, targets: Tensor) -> Sequence[Tensor]:
            return self._train_on(replace(batch, images=images, targets=targets))

        return self.captured(kind, work, batch.images, batch.targets)

    def release(self) -> None:
        """Take steps again after one that was not finite."""
        self._held.zero_()

    @property
    def loss(self) -> Loss:
        return self.objective.loss

    def prepare(self, batch: Batch) -> Batch:
        """Augment, normalise, resize and mix, in the order of the plan."""
        return self.engine.change_batch(batch, self.model, self.loss, self.normalize)

    def normalize(self, images: Tensor) -> Tensor:
        """uint8 images to the run's number format, with the data set's mean 0 and deviation 1."""
        dataset = self.plan.config.dataset
        return normalize(images, dataset.mean, dataset.std, self.precision.dtype)

    def gradients(self, batch: Batch, *, synchronize: bool = True, update_statistics: bool = True) -> Tensor:
        """Forward and backward in `accumulation` equal parts; gradients are left in `.grad`, scaled by the scaler."""
        self.optimizer.zero_grad(set_to_none=True)
        parts = self.plan.accumulation
        total: Tensor | None = None
        for number, (images, targets) in enumerate(self._parts(batch), 1):
            with ExitStack() as stack:
                if not (synchronize and number == parts) and isinstance(self.network, DistributedDataParallel):
                    stack.enter_context(self.network.no_sync())
                if not update_statistics:
                    stack.enter_context(frozen_statistics(self.model))
                loss = self.network(images, targets)
                if parts > 1:
                    loss = loss / parts
                self.scaler.scale(loss).backward()
            total = loss.detach() if total is None else total + loss.detach()
        assert total is not None
        return total

    def _parts(self, batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
        parts = self.plan.accumulation
        return zip(batch.images.chunk(parts), batch.targets.chunk(parts), strict=True)

    def _send(self, lr: float, asked: Asked) -> None:
        """What the step is told by the host, in one copy for which it does not wait."""
        numbers = torch.tensor([lr, asked.stop, asked.save], dtype=torch.float32)
        self._numbers.copy_(numbers.pin_memory() if self._numbers.is_cuda else numbers, non_blocking=True)
        set_lr(self.optimizer, self._numbers[0])

    def _flags(self, values: Tensor) -> Tensor:
        """Whether the step is not finite, is left out for itself, and a stop and a save are asked for: float32 [4].

        The same on all ranks. values: the loss and the norm of the gradients [2]. Gradients that overflow in fp16 are
        left out and count as finite, as long as the loss scaler will mend them by a smaller scale.
        """
        bad = (values - values) != 0  # note: in fewer calls than isfinite
        counting = bad.any().expand(2)
        if self.scaler.is_enabled():
            counting = torch.stack([bad[0] | (bad[1] & self.scaler.counts()), counting[1]])
        return highest(torch.cat([counting.float(), self._numbers[1:]]))

    def _update(self, flags: Tensor, moment: Moment) -> Tensor:
        """Change the weights by the gradients unless the step is left out; returns whether it is, float32 []."""
        left_out = torch.maximum(flags[1], self._held)
        self.engine.change_gradients(self.model)
        self.optimizer.found_inf = left_out  # type: ignore[attr-defined]
        self.optimizer.number = moment.step  # type: ignore[attr-defined]
        self.optimizer.step()
        if self.scaler.is_enabled():
            self.scaler.conclude(self.optimizer, left_out, self._held)
        torch.maximum(self._held, flags[0], out=self._held)
        return left_out


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
