"""Learning rate and image side of every step."""

from __future__ import annotations

import math

from launcher.config.algorithms import ColOutConfig, ProgressiveResizingConfig
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
    2017, to the end of the run; the last step is one short of the final value.
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
            return float(schedule.final + (1 - schedule.final) * (1 - done) ** schedule.power)
        case MultiStep():
            passed = sum(step >= steps(milestone) for milestone in schedule.milestones)
            return float(schedule.gamma**passed)
        case Constant():
            return 1.0


def scaled(side: int, *, reference: int, native: int, multiple: int = 4) -> int:
    """A side meant for pictures of side `reference`, for pictures of side `native`, to the nearest `multiple`.

    A side meant for the data set's own size is left exactly as it is.
    """
    if reference == native:
        return side
    return max(multiple, round(side * native / reference / multiple) * multiple)


def progressive_scale(values: ProgressiveResizingConfig, progress: float) -> float:
    """Scale of the side at a part of the run: initial for `delay`, 1 for the last `finetune`, linear between."""
    ramp = 1 - values.delay - values.finetune
    if progress < values.delay:
        return values.initial_scale
    if progress >= 1 - values.finetune or ramp <= 0:
        return 1.0
    return values.initial_scale + (1 - values.initial_scale) * (progress - values.delay) / ramp


def progressive_size(
    values: ProgressiveResizingConfig, full: int, *, step: int, steps_per_epoch: int, total_steps: int
) -> int:
    """Side in pixels at a step, rounded to `size_multiple`; `granularity: epoch` changes it at epochs only.

    `interpolation: nearest` gives the sides of the published code, which are a pixel smaller at two of the multiples.
    """
    if values.granularity == "epoch":
        step = step // steps_per_epoch * steps_per_epoch
    scale = progressive_scale(values, step / total_steps)
    if scale == 1.0:
        return full
    side = max(values.size_multiple, round(scale * full / values.size_multiple) * values.size_multiple)
    # note: Composer gives the scale, not the side: PyTorch floors 176 * (120 / 176), which is less than 120, to 119
    return math.floor(full * (side / full)) if values.interpolation == "nearest" else side


def kept(length: int, dropped: float) -> int:
    """Rows or columns that ColOut keeps of so many: floor((1 - dropped) * length)."""
    return int((1 - dropped) * length)


def side_after_colout(values: ColOutConfig, side: int) -> int:
    """Side of what ColOut leaves of a square; of a square of as many pixels where rows and columns differ."""
    return round(math.sqrt(kept(side, values.rows) * kept(side, values.columns)))
