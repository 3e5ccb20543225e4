"""The order in which algorithms act at each point of the loop: one table, whatever the order of writing.

A point is the name of the method of `launcher.algorithms.base.Algorithm` that the loop calls there.
Names in angle brackets are the loop's own work.
"""

from __future__ import annotations

from launcher.config.algorithms import Algorithms

NORMALIZE = "<normalize>"

ORDER: dict[str, tuple[str, ...]] = {
    # model surgery, before the optimizer and DDP see the parameters
    "change_model": (
        "squeeze_excite",
        "blurpool",
        "stochastic_depth",
        "ghost_batchnorm",
        "channels_last",
        "ema",
        "swa",
    ),
    # which sample indices an epoch reads
    "change_order": ("repeated_augmentation",),
    # one uint8 image in a loader's worker process, after crop and flip
    "change_image": ("randaugment",),
    # a batch on the device: uint8 before normalisation, floating point after it; the last two prepare the model for it
    "change_batch": (
        "randaugment",
        "trivialaugment",
        "augmix",
        "colout",
        NORMALIZE,
        "progressive_resizing",
        "cutout",
        "random_erasing",
        "selective_backprop",
        "label_smoothing",
        "mixup",
        "cutmix",
        "channels_last",
        "stochastic_depth",
        "layer_freezing",
    ),
    # how the gradient is computed: forward and backward passes
    "compute_gradients": ("sam",),
    # gradients before the optimizer's step, unscaled and averaged over ranks
    "change_gradients": ("gradient_clipping",),
    # after each optimizer step
    "after_step": ("ema", "swa"),
    # weights used for evaluation and export
    "evaluation_weights": ("ema", "swa"),
}


def acting(point: str, algorithms: Algorithms) -> list[str]:
    """Names acting at a point, in order, the loop's own work included."""
    return [name for name in _order(point, algorithms) if name == NORMALIZE or _acts(point, name, algorithms)]


def _order(point: str, algorithms: Algorithms) -> tuple[str, ...]:
    """The table's row of a point; ColOut stands behind resizing there if its values say so."""
    names = ORDER[point]
    if point != "change_batch" or algorithms.colout is None or algorithms.colout.order == "before_resizing":
        return names
    rest = [name for name in names if name != "colout"]
    after = rest.index("progressive_resizing") + 1
    return (*rest[:after], "colout", *rest[after:])


def _acts(point: str, name: str, algorithms: Algorithms) -> bool:
    values = getattr(algorithms, name)
    if values is None:
        return False
    if name == "randaugment":
        return bool((values.where == "loader") == (point == "change_image"))
    return True
