"""What is told when a GPU's memory does not hold a step: how many pictures at a time it would hold."""

from __future__ import annotations

import gc
import math
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from launcher.errors import Problem, UserError
from launcher.training.trainer import Trainer

# What is left free: the allocator's pieces, and what other sides and methods need beyond a plain pass.
_SPARE = 0.1


@contextmanager
def memory_told(trainer: Trainer) -> Iterator[None]:
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
    """One line; measures passes of few pictures, by which more need memory in proportion."""
    plan = trainer.plan
    part = plan.rank_batch // plan.accumulation
    try:
        peaks = {pictures: peak_bytes(trainer, pictures) for pictures in (max(1, part // 16), max(2, part // 8))}
        most = most_pictures(peaks, memory_bytes(trainer.ranks.device))
    except torch.OutOfMemoryError:
        most = 0
    parts = [
        plan.rank_batch // n for n in range(plan.accumulation + 1, plan.rank_batch + 1) if plan.rank_batch % n == 0
    ]
    fitting = next((pictures for pictures in parts if pictures <= most), None)
    less = "; model.checkpointing=on takes less memory and more time" * (plan.config.model.checkpointing == "off")
    held = f"{part} pictures of {plan.train_size} px at a time do not fit ({reason})"
    if fitting is None:
        return f"{held}, nor do fewer; a smaller model or image.train_size may{less}"
    return f"{held}; about {most} would: device_batch_size={fitting} keeps the global batch{less}"


def peak_bytes(trainer: Trainer, pictures: int) -> int:
    """The most memory in use during a forward and a backward pass of so many pictures at the run's largest side."""
    step, device, side = trainer.train_step, trainer.ranks.device, trainer.plan.train_size
    trainer.train_step.optimizer.zero_grad(set_to_none=True)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    with step.precision.autocast():
        logits = step.model(torch.zeros(pictures, 3, side, side, device=device))
    logits.float().sum().backward()
    return torch.cuda.max_memory_allocated(device)


def memory_bytes(device: torch.device) -> int:
    """What this process can have: what is free, and what it holds already."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device)


def most_pictures(peaks: Mapping[int, int], memory: int) -> int:
    """How many pictures fit: the least and the most of `peaks`, bytes by pictures, lie on a line."""
    few, many = min(peaks), max(peaks)
    each = (peaks[many] - peaks[few]) / (many - few) if many > few else peaks[many]
    if each <= 0:
        return 0
    return max(0, math.floor((memory * (1 - _SPARE) - peaks[many]) / each) + many)
