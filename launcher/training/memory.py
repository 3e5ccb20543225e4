"""Explain a step that a GPU's memory does not hold: how many images at a time it would hold."""

from __future__ import annotations

import gc
import math
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from launcher.errors import Problem, UserError
from launcher.training.trainer import Trainer

# What stays free: the allocator's pieces, and what other sizes and algorithms need beyond a plain pass.
_SPARE = 0.1


@contextmanager
def explaining_memory(trainer: Trainer) -> Iterator[None]:
    """Around steps; an evaluation's failure passes.

    Raises:
        UserError: the GPU's memory does not hold a step; names the batch that would fit.
    """
    try:
        yield
        return
    except torch.OutOfMemoryError as error:
        if "evaluate" in {frame.name for frame in traceback.extract_tb(error.__traceback__)}:
            raise  # note: whose batch is another key
        # note: its frames hold on to the activations
        first = str(error.with_traceback(None)).partition(". ")[0]
    gc.collect()
    raise UserError(Problem(_advice(trainer, first), "device_batch_size", trainer.plan.config.device_batch_size))


def _advice(trainer: Trainer, reason: str) -> str:
    """One line; measures two passes of few images, in proportion to which more need memory."""
    plan = trainer.plan
    part = plan.rank_batch // plan.accumulation
    try:
        most = _most_images(trainer, max(1, part // 16), max(2, part // 8))
    except torch.OutOfMemoryError:
        most = 0
    fitting = next((images for images in range(min(most, part - 1), 0, -1) if plan.rank_batch % images == 0), None)
    less = "; model.checkpointing=on takes less memory and more time" * (plan.config.model.checkpointing == "off")
    refused = f"{part} images of {plan.train_size} px at a time do not fit ({reason})"
    if fitting is None:
        return f"{refused}, nor do fewer; a smaller model or image.train_size may{less}"
    return f"{refused}; about {most} would: device_batch_size={fitting} keeps the global batch{less}"


def _most_images(trainer: Trainer, few: int, many: int) -> int:
    """How many images fit, by a line through the peaks of two passes."""
    least, most = peak_bytes(trainer, few), peak_bytes(trainer, many)
    left = memory_bytes(trainer.ranks.device) * (1 - _SPARE) - most
    return max(0, math.floor(left / (most - least) * (many - few)) + many) if most > least else 0


def peak_bytes(trainer: Trainer, images: int) -> int:
    """The most memory in use during a forward and a backward pass of so many images at the run's largest size."""
    step, device, size = trainer.train_step, trainer.ranks.device, trainer.plan.train_size
    step.optimizer.zero_grad(set_to_none=True)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    with step.precision.autocast():
        logits = step.model(torch.zeros(images, 3, size, size, device=device))
    logits.float().sum().backward()
    return torch.cuda.max_memory_allocated(device)


def memory_bytes(device: torch.device) -> int:
    """What this process can have: what is free, and what it holds already."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device)
