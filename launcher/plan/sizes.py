"""Image sizes over the run, as pure functions."""

from __future__ import annotations

import math

from launcher.config.algorithms import ColOut, ProgressiveResizing


def scaled(side: int, *, reference: int, native: int, multiple: int = 4) -> int:
    """A side meant for pictures of side `reference`, for pictures of side `native`, to the nearest `multiple`.

    A side meant for the data set's own size is left exactly as it is.
    """
    if reference == native:
        return side
    return max(multiple, round(side * native / reference / multiple) * multiple)


def progressive_scale(values: ProgressiveResizing, progress: float) -> float:
    """Scale of the side at a part of the run: initial for `delay`, 1 for the last `finetune`, linear between."""
    ramp = 1 - values.delay - values.finetune
    if progress < values.delay:
        return values.initial_scale
    if progress >= 1 - values.finetune or ramp <= 0:
        return 1.0
    return values.initial_scale + (1 - values.initial_scale) * (progress - values.delay) / ramp


def progressive_size(
    values: ProgressiveResizing, full: int, *, step: int, steps_per_epoch: int, total_steps: int
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


def side_after_colout(values: ColOut, side: int) -> int:
    """Side of what ColOut leaves of a square; of a square of as many pixels where rows and columns differ."""
    return round(math.sqrt(kept(side, values.rows) * kept(side, values.columns)))
