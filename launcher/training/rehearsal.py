"""Run each kind of step once before training, on blank samples, so that what is slow only once is outside its time."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from launcher.compute.accelerator import synchronize
from launcher.compute.foreach import Snapshot
from launcher.counts import count_of
from launcher.data.batch import Batch
from launcher.plan.step_kinds import step_kinds
from launcher.rank.signs import HEARTBEAT
from launcher.training.norm_statistics import frozen_statistics
from launcher.training.step import TrainStep
from launcher.training.trainer import Trainer

# Batches of each kind of step to prepare.
_DRAWS = 4


def rehearse_run(trainer: Trainer) -> None:
    """Rehearse the steps that remain if `launch.rehearsal` requires it: the first of each view is slow.

    The weights, the state and all later draws stay the same.
    """
    if trainer.config.launch.rehearsal == "off":
        return
    start = time.perf_counter()
    with unchanged_statistics(trainer):
        count = rehearse(trainer, trainer.next_step)
    synchronize(trainer.ranks.device)
    if trainer.ranks.is_first:
        seconds = time.perf_counter() - start
        print(f"rehearsed {count_of(count, 'kind')} of steps in {seconds:.0f} s (outside training time)", flush=True)


@contextmanager
def unchanged_statistics(trainer: Trainer) -> Iterator[None]:
    """Restore the buffers of the network, which forward passes change."""
    statistics = Snapshot(trainer.train_step.model.buffers())
    statistics.take()
    yield
    statistics.restore_unless(torch.zeros((), dtype=torch.bool, device=trainer.ranks.device))


def rehearse(trainer: Trainer, first_step: int = 0, mark: Callable[[Tensor], None] | None = None) -> int:
    """Prepare batches, and run forward and backward, for every kind of step from `first_step` on; return their number.

    Several batches of each kind are prepared, since random draws can lead to different transforms. `mark` receives the
    inputs and targets of each forward pass.
    """
    step, plan = trainer.train_step, trainer.plan
    updates = step.optimizer.updates_statistics
    freezes = updates or any(one.freezes_statistics for one in step.engine.active.values())
    seen: set[object] = set()
    for steps in (steps for steps in step_kinds(plan).values() if steps[-1] >= first_step):
        step.engine.before_step(step.model, trainer.moment(steps[0]))
        inputs, labels = step.task.blank(plan.rank_batch, plan.loaded_size(steps[0]), trainer.ranks.device)
        for moment in map(trainer.moment, steps[:_DRAWS]):
            batch = step.prepare(Batch(inputs, labels, np.arange(len(inputs)), moment))
        inputs, targets = (tensor.chunk(plan.accumulation)[0] for tensor in (batch.inputs, batch.targets))
        shape = (inputs.shape, inputs.stride(), targets.shape, targets.dtype, learning_parameters(step.model))
        if shape in seen:
            continue
        seen.add(shape)
        if mark:
            for tensor in (inputs, targets):
                mark(tensor)
        if updates:
            with torch.no_grad():
                step.objective(inputs, targets)
        else:
            _differentiate(step, inputs, targets)
        if freezes:
            with frozen_statistics(step.model):
                _differentiate(step, inputs, targets)
        HEARTBEAT.beat()
    return len(seen)


def learning_parameters(model: nn.Module) -> tuple[bool, ...]:
    """Return whether each parameter learns."""
    return tuple(parameter.requires_grad for parameter in model.parameters())


def _differentiate(step: TrainStep, inputs: Tensor, targets: Tensor) -> None:
    # note: without `.grad`, so that no bucket waits for ranks that may fail to compile
    parameters = [parameter for parameter in step.model.parameters() if parameter.requires_grad]
    torch.autograd.grad(step.objective(inputs, targets), parameters, allow_unused=True)
