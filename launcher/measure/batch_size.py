"""Search the largest batch that fits in a GPU's memory, by real training steps, for `batch_size=auto`."""

import gc
import json
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from launcher.algorithms.base import Teacher
from launcher.compute.accelerator import interface
from launcher.config.schema import RunConfig
from launcher.launch.auto_batch import FEWEST_IMAGES, LEAST_STEPS
from launcher.measure.estimate import RESULT
from launcher.measure.step_timer import StepTimer, capture
from launcher.plan.step_kinds import step_kinds, step_samples
from launcher.rank.group import Ranks
from launcher.training.captured import Capturer
from launcher.training.opened import opened
from launcher.training.trainer import build_trainer

# Of the memory that is free at first; the rest is for NCCL, fragmentation and captured graphs.
_SHARE = 0.9


def search(scratch: Path) -> None:
    """Write the largest number of images of a step of the folder's config that fits on this rank's GPU, or 0."""
    with opened(scratch) as run:
        most = (run.config.dataset.train_samples or 0) // LEAST_STEPS
        images = largest(lambda images: fits(run.config, images, run.ranks, run.teacher), most)
    (scratch / RESULT).write_text(json.dumps(images))


def largest(fits: Callable[[int], bool], most: int) -> int:
    """Return the largest power of two from 2 to `most` that fits, doubling while it does; 0 if 2 does not."""
    images, found = FEWEST_IMAGES, 0
    while images <= most and fits(images):
        images, found = 2 * images, images
    return found


class _OutOfMemory(Exception):
    """A capture ran out of memory; a run would print so, and train without graphs."""


class _Capturer(Capturer):
    def capture(self, function: Callable[[], Sequence[Tensor]]) -> tuple[Any, Sequence[Tensor]]:
        try:
            return super().capture(function)
        except RuntimeError as error:
            if isinstance(error.__context__ or error, torch.OutOfMemoryError):
                raise _OutOfMemory from None
            raise


def fits(config: RunConfig, images: int, ranks: Ranks, teacher: Teacher | None = None) -> bool:
    """Return whether two steps of each kind, at its largest image size, leave a tenth of the free memory."""
    # note: an earlier failure's frames no longer hold tensors
    gc.collect()
    device = interface(ranks.device)
    device.empty_cache()
    device.reset_peak_memory_stats(ranks.device)
    free, _ = device.mem_get_info(ranks.device)
    try:
        _take_steps(replace(config, batch_size=images), ranks, teacher)
    except (torch.OutOfMemoryError, _OutOfMemory):
        return False
    return bool(device.max_memory_reserved(ranks.device) <= _SHARE * free)


def _take_steps(config: RunConfig, ranks: Ranks, teacher: Teacher | None) -> None:
    """Take two steps of each kind; the optimizer allocates its state at the first.

    With CUDA graphs the memory of one kind's graph stays in use while the next kind warms up.
    """
    run = build_trainer(config, ranks, teacher=teacher)
    steps = 2 + capture(run, _Capturer)
    timer = StepTimer(run)
    batch = next(iter(run.loaders.train.epoch(0)))
    samples = sorted(step_samples(step_kinds(run.plan)), key=operator.attrgetter("kind.view"))
    for sample in {sample.kind.acting: sample for sample in samples}.values():
        for number in range(steps):
            timer.step(batch, sample, number)
    timer.synchronize()
    run.loaders.close()
