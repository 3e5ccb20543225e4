"""Which machine for a run: those that a word names, the length that a quality takes, and all of them side by side."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from lab.predict.prediction import Prediction, efficiencies
from lab.study.curve_math import cost_at, pareto_front
from lab.study.curves import Cost, Curve
from launcher.config.hardware import gpus, machines
from launcher.config.keys import nearest
from launcher.config.schema import Hardware
from launcher.errors import Problem, UserError
from launcher.measure.estimate import Span
from launcher.plan.plan import Plan

ALL = "all"


def machine_named(word: str, known: dict[str, Hardware] | None = None) -> str:
    """The machine of conf/hardware that a word names: its own name, or 8xH100, of which the cheapest is meant.

    Raises:
        UserError: there is none; with the nearest.
    """
    known = known or rented()
    if word in known:
        return word
    if word in machines():
        raise UserError(
            Problem(
                "its GPU is not known here; `train estimate` measures it, or name one of `train ls hardware`",
                "--on",
                word,
            )
        )
    counted = re.fullmatch(r"(\d+) ?x[ _]?(.+)", word)
    if not counted:
        near = nearest(word, [*known, *_counts(known)])
        hint = f"did you mean {near}? " if near else ""
        raise UserError(
            Problem(
                f"no such machine; {hint}`train ls hardware` lists them, or {', '.join(_counts(known))}", "--on", word
            )
        )
    count, name = int(counted[1]), _plain(counted[2])
    # note: the beginning of a name is not enough, as A10 and L4 are GPUs too
    models = [gpu for gpu in gpus() if name in (_plain(gpu), _plain(gpu).removesuffix("gb"), _plain(gpu.split()[0]))]
    if not models:
        firsts = {_plain(gpu.split()[0]): gpu.split()[0] for gpu in gpus()}
        near = firsts.get(nearest(name, firsts) or "")
        hint = f"did you mean {count}x{near}? " if near else ""
        raise UserError(Problem(f"no such GPU; {hint}one of: {', '.join(gpus())}", "--on", word))
    found = [machine for machine in known.values() if machine.gpu in models and machine.gpus == count]
    if not found:
        there = sorted({f"{machine.gpus}x{machine.gpu}" for machine in known.values() if machine.gpu in models})
        raise UserError(Problem(f"no known machine has these; {', '.join(there)} are known", "--on", word))
    return min(found, key=lambda machine: (machine.price_per_hour is None, machine.price_per_hour)).name


def rented() -> dict[str, Hardware]:
    """The machines whose GPU is known."""
    return {name: machine for name, machine in machines().items() if machine.gpu in gpus()}


def _counts(known: dict[str, Hardware]) -> list[str]:
    return sorted({f"{machine.gpus}x{str(machine.gpu).split()[0]}" for machine in known.values()})


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


@dataclass(frozen=True)
class Length:
    """The epochs, in parts too, or the minutes on a published machine, that a quality takes; `source` says whose."""

    epochs: float | None
    minutes: float | None
    hardware: str
    source: str


def length_for(quality: float, recipe: str, curves: Iterable[Curve]) -> Length:
    """Between two points of a curve of the recipe, in the logarithm of the cost; the user's own curves come first.

    Raises:
        UserError: no curve of the recipe spans the quality.
    """
    own = [curve for curve in curves if curve.recipe == recipe]
    spans = []
    for curve in sorted(own, key=lambda curve: (curve.source is not None, -len(curve.points))):
        known = curve.on("epochs")
        axis: Cost = "epochs" if len(known) == len(curve.points) or len(known) > 1 else "time"
        points = curve.on(axis)
        if not points:
            continue
        costs = np.array([point.cost(axis) for point in points], np.float64)
        qualities = np.array([point.quality for point in points], np.float64)
        spans.append((qualities.min(), qualities.max()))
        cost = float(cost_at(costs, qualities, quality))
        if 0 < cost < np.inf:
            epochs, minutes = (cost, None) if axis == "epochs" else (None, cost)
            hardware = curve.setting.hardware
            return Length(epochs, minutes, hardware, f"{curve.source or 'own runs'}: {recipe} on {hardware}")
    if not spans:
        raise UserError(
            Problem(
                f"no published point and no run below --runs says what quality {recipe} reaches; give epochs=",
                "--quality",
                quality,
            )
        )
    least, most = min(low for low, _ in spans), max(high for _, high in spans)
    raise UserError(Problem(f"the curves of {recipe} span {least:g} to {most:g} %", "--quality", quality))


@dataclass(frozen=True)
class Offer:
    """A run on a machine at one of its prices: seconds and money with their ranges; `front`: no other beats both."""

    machine: Hardware
    spot: bool
    wall: Span
    cost: Span | None
    prediction: Prediction
    problem: str = ""
    front: bool = False


def offers(plan: Plan, prediction: Prediction, problem: str) -> list[Offer]:
    """On demand, and as a machine that may be taken away where it has such a price."""
    machine, wall = prediction.machine, prediction.found.wall
    found = [Offer(machine, False, wall, prediction.cost(machine.price_per_hour), prediction, problem)]
    if machine.spot_per_hour is not None:
        longer = _interrupted(plan, prediction)
        spot = Span(*(seconds * longer for seconds in (wall.seconds, wall.low, wall.high)))
        price = machine.spot_per_hour / 3600
        cost = Span(*(price * seconds for seconds in (spot.seconds, spot.low, spot.high)))
        found.append(Offer(machine, True, spot, cost, prediction, problem))
    return found


def _interrupted(plan: Plan, prediction: Prediction) -> float:
    """How much longer a run takes that is interrupted as assumed: the restart, and half of what lies between saves."""
    assumed = efficiencies()["spot"]
    between = plan.every(plan.config.checkpoint.every) * prediction.found.training.seconds / plan.total_steps
    lost = 60 * float(assumed["minutes_until_restart"]) + between / 2
    return 1 + float(assumed["interruptions_an_hour"]) * lost / 3600


def with_front(found: Sequence[Offer]) -> list[Offer]:
    """Cheapest first, with those marked that no other beats in money and time; what cannot run or has no price last."""
    able = [offer for offer in found if offer.cost is not None and not offer.problem]
    front = {id(able[i]) for i in pareto_front([(_money(offer), -offer.wall.seconds) for offer in able])}
    marked = [Offer(**{**vars(offer), "front": id(offer) in front}) for offer in found]
    return sorted(marked, key=lambda offer: (bool(offer.problem), offer.cost is None, _money(offer)))


def _money(offer: Offer) -> float:
    return offer.cost.seconds if offer.cost else 0.0


def memory_problem(plan: Plan, prediction: Prediction) -> str:
    """Why a GPU cannot hold a step, and what would fit; empty where it can."""
    if prediction.fits:
        return ""
    held = plan.rank_batch // plan.accumulation
    gpu = gpus()[str(prediction.machine.gpu)]
    most = held * efficiencies()["assumed"]["memory"] * gpu.memory / prediction.memory_gigabytes
    parts = [n for n in range(1, plan.rank_batch + 1) if plan.rank_batch % n == 0 and n <= most]
    hint = f"device_batch_size={parts[-1]} fits" if parts else "not even one fits"
    return f"{held} pictures at once need {prediction.memory_gigabytes:.0f} GB of a GPU's {gpu.memory:g}; {hint}"
