"""The lengths of a recipe whose quality is known, in epochs, and the length for a quality."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from launcher.config.compose import compose
from launcher.config.groups import machines
from launcher.errors import Problem, UserError
from launcher.plan.plan import plan_for
from launcher.prediction.machines import gpu_of, machine_named
from launcher.prediction.prediction import Predictor
from launcher.results.curve_math import cost_at
from launcher.results.curves import Curve

# The loading of the published curves: FFCV, eight workers per GPU.
_AS_PUBLISHED = ("dataset=imagenet", "dataloader=ffcv", "dataloader.workers=8", "compile=off", "cuda_graphs=off")


@dataclass(frozen=True)
class Length:
    """A length with its quality in percent, if that is known, and where that is from."""

    epochs: int
    quality: float | None
    source: str = ""


def lengths_of(curve: Curve) -> list[Length]:
    """Return the lengths of a curve; of points with minutes alone, the epochs that fit into them, as predicted."""
    source = f"{curve.source or 'own runs'}: {curve.recipe} on {curve.setting.hardware}"
    lengths = []
    for point in curve.points:
        minutes = point.cost("time")
        if point.epochs is not None:
            lengths.append(Length(point.epochs, point.quality, source))
        elif minutes is not None:
            epochs = minutes / _epoch_minutes(curve.recipe, curve.setting.hardware)
            note = f"{source}, its minutes at the throughput predicted there"
            lengths.append(Length(max(1, round(epochs)), point.quality, note))
    return lengths


def rising(lengths: Iterable[Length]) -> list[Length]:
    """Sort lengths, without those that a shorter one equals or surpasses."""
    kept: list[Length] = []
    for one in sorted(lengths, key=lambda one: (one.epochs, -(one.quality or 0.0))):
        if not kept or (one.quality or 0.0) > (kept[-1].quality or 0.0):
            kept.append(one)
    return kept


def length_for(quality: float, recipe: str, curves: Iterable[Curve]) -> Length:
    """Interpolate the length for a quality in the logarithm of the epochs; the user's own curves come first.

    Raises UserError if no curve of the recipe spans the quality.
    """
    own = [curve for curve in curves if curve.recipe == recipe]
    known = []
    for curve in sorted(own, key=lambda curve: (curve.source is not None, -len(curve.points))):
        lengths = rising(lengths_of(curve))
        known += [one.quality or 0.0 for one in lengths]
        epochs = needed(quality, lengths)
        if 0 < epochs < math.inf:
            source = next(one.source for one in lengths if (one.quality or 0.0) >= quality)
            return Length(round(epochs), quality, source)
    if not known:
        message = f"{recipe} has no published point and no finished run below runs=; set epochs= instead"
        raise UserError(Problem(message, "--quality", quality))
    spans = f"the curves of {recipe} reach {min(known):g} to {max(known):g} %; set a value in between"
    raise UserError(Problem(spans, "--quality", quality))


def needed(quality: float, lengths: Sequence[Length]) -> float:
    """Return the epochs for a quality on rising lengths; 0 if the shortest has more, inf if none reaches it."""
    return (
        cost_at([one.epochs for one in lengths], [one.quality or 0.0 for one in lengths], quality) if lengths else 0.0
    )


@cache
def _epoch_minutes(recipe: str, hardware: str) -> float:
    """Return the minutes of an epoch of a recipe on published hardware, such as 8x A100 80GB and p4d.24xlarge."""
    there = machines()[machine_named(hardware).machine]
    plan = plan_for(compose([f"recipe={recipe}", *_AS_PUBLISHED]).config, there.gpus or 1)
    return Predictor(plan).on(there, gpu_of(there)).steps_seconds / plan.epochs / 60
