"""Learning rate of every step, and sizes for other data sets."""

from __future__ import annotations

import math

from launcher.config.fields import in_steps
from launcher.config.schema import Constant, Cosine, Linear, MultiStep, Polynomial

Schedules = Cosine | Linear | Polynomial | MultiStep | Constant


def dilated_epochs(epochs: int, dilate: float) -> int:
    """Epochs that a run has, from those of its config: whole ones, and at least one."""
    return max(1, round(epochs * dilate))


def schedule_steps(schedule: Schedules, duration: str, *, steps_per_epoch: int, total_steps: int) -> int:
    """A time of the schedule in steps: epochs and batches are dilated, parts of the run are so already."""
    length = in_steps(duration, steps_per_epoch=steps_per_epoch, total_steps=total_steps)
    return length if duration.endswith("dur") else round(length * schedule.dilate)


def multiplier(schedule: Schedules, step: int, *, steps_per_epoch: int, total_steps: int) -> float:
    """Multiplier of the peak learning rate for the zero-based optimizer step, in [0, 1].

    `total_steps` is the dilated length of the run. With `granularity: epoch` all steps of an epoch have the value of
    its first; a warmup that includes its peak goes (e + 1) / warmup through the epochs. Cosine: Loshchilov & Hutter
    2017, to the end of the run; the last step is one short of the final value. Polynomial: its time runs from the peak,
    which a warmup that includes it reaches a step earlier, as in NVIDIA's MLPerf entries.
    """
    stair = steps_per_epoch if schedule.granularity == "epoch" else 1
    step = step // stair * stair

    def steps(text: str) -> int:
        return schedule_steps(schedule, text, steps_per_epoch=steps_per_epoch, total_steps=total_steps)

    warmup = steps(schedule.warmup)
    if step < warmup:
        reached = min(1.0, (step + stair * schedule.warmup_includes_peak) / warmup)
        return schedule.warmup_start + (1 - schedule.warmup_start) * reached
    done = (step - warmup) / max(1, total_steps - warmup)
    match schedule:
        case Cosine():
            done = step / total_steps if schedule.counts_warmup else done
            return schedule.final + (1 - schedule.final) * (1 + math.cos(math.pi * done)) / 2
        case Linear():
            return 1 + (schedule.final - 1) * done
        case Polynomial():
            # note: a warmup that includes its peak ends there, and the next step falls already
            done += schedule.warmup_includes_peak * stair / max(1, total_steps - warmup)
            return float(schedule.final + (1 - schedule.final) * (1 - done) ** schedule.power)
        case MultiStep():
            passed = sum(step >= steps(milestone) for milestone in schedule.milestones)
            return float(schedule.gamma**passed)
        case Constant():
            return 1.0


def scaled(side: int, *, reference: int, native: int, multiple: int = 4) -> int:
    """A side meant for images of side `reference`, for images of side `native`, to the nearest `multiple`.

    A side meant for the data set's own size is left exactly as it is.
    """
    if reference == native:
        return side
    return max(multiple, round(side * native / reference / multiple) * multiple)
