"""Compare a run on machines: prices on demand and spot, and the Pareto front."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from launcher.config.gpus import efficiencies, gpus, unsupported
from launcher.config.hardware import Hardware
from launcher.config.schema import RunConfig
from launcher.counts import count_of
from launcher.measure.estimate import Span
from launcher.plan import counted
from launcher.plan.plan import Plan
from launcher.prediction.machines import gpu_of
from launcher.prediction.prediction import Prediction, Predictor
from launcher.prediction.profiles import Profile, correction
from launcher.results.curve_math import pareto_front


@dataclass(frozen=True)
class Offer:
    """A run on machines at one of their prices: seconds and money with their ranges; `front`: on the Pareto front.

    fitting: the `device_batch_size` that fits where the run's does not.
    """

    machine: Hardware
    nodes: int
    spot: bool
    wall: Span
    cost: Span | None
    prediction: Prediction
    problem: str = ""
    front: bool = False
    fitting: int | None = None


def offers_of(predictor: Predictor, machine: Hardware, profiles: Sequence[Profile]) -> list[Offer]:
    """Return the offers of a machine for a run, corrected by measured steps.

    Raises UserError if the machine has no GPU of conf/gpus.yaml.
    """
    plan, gpu = predictor.plan, gpu_of(machine)
    corrected = correction(plan, str(machine.gpu), profiles, efficiencies())
    return offers(plan, predictor.on(machine, gpu, correction=corrected.factor, made_from=corrected.made_from))


def offers(plan: Plan, prediction: Prediction) -> list[Offer]:
    """Return the offer on demand, and as a spot machine if it has a spot price."""
    machine, wall, nodes = prediction.machine, _limited(plan, prediction), plan.config.launch.nnodes
    price = machine.price_per_hour
    cost = None if price is None else _times(wall, nodes * price / 3600)
    problem = unsupported(machine.gpu) or network_problem(plan.config, machine) or memory_problem(plan, prediction)
    fitting = fitting_batch(plan, prediction)
    offers = [Offer(machine, nodes, False, wall, cost, prediction, problem, fitting=fitting)]
    if machine.spot_per_hour is not None:
        spot = _times(wall, _interrupted(plan, prediction))
        money = _times(spot, nodes * machine.spot_per_hour / 3600)
        offers.append(Offer(machine, nodes, True, spot, money, prediction, problem, fitting=fitting))
    return offers


def _limited(plan: Plan, prediction: Prediction) -> Span:
    """Return the time of a run, which `stop.minutes` of training, evaluations and checkpoints end."""
    estimate, minutes = prediction.estimate, plan.config.stop.minutes
    most = math.inf if minutes is None else 60 * minutes + estimate.start_seconds
    return Span(*(min(seconds, most) for seconds in (estimate.wall.seconds, estimate.wall.low, estimate.wall.high)))


def _times(span: Span, factor: float) -> Span:
    return Span(span.seconds * factor, span.low * factor, span.high * factor)


def _interrupted(plan: Plan, prediction: Prediction) -> float:
    """Return the factor for assumed preemptions: each costs the restart and half a checkpoint interval."""
    lost = 60 * float(efficiencies()["spot"]["minutes_until_restart"]) + between_checkpoints(plan, prediction) / 2
    return 1 + _interruptions(plan) * lost / 3600


def _interruptions(plan: Plan) -> float:
    """Return the assumed preemptions an hour; that of one machine interrupts all."""
    return plan.config.launch.nnodes * float(efficiencies()["spot"]["interruptions_an_hour"])


def between_checkpoints(plan: Plan, prediction: Prediction) -> float:
    """Return the predicted seconds of training between checkpoints, by steps or by the clock."""
    values, training = plan.config.checkpoint, prediction.estimate.training.seconds
    by_steps = plan.every(values.every) * training / plan.total_steps
    return min(by_steps, training, 60 * values.every_minutes if values.every_minutes else math.inf)


def best_interval(plan: Plan, prediction: Prediction) -> float:
    """Return the seconds between checkpoints that lose the least time to them and to the assumed preemptions.

    Source: Young 1974; Daly 2006, first order.
    """
    estimate = prediction.estimate
    save = estimate.saving.seconds / max(1, estimate.checkpoints)
    return math.sqrt(2 * save * 3600 / _interruptions(plan))


def with_front(offers: Sequence[Offer]) -> list[Offer]:
    """Sort offers by cost and mark the Pareto front; offers that cannot run or have no price come last."""
    able = [offer for offer in offers if offer.cost is not None and not offer.problem]
    front = {id(able[i]) for i in pareto_front([(_money(offer), -offer.wall.seconds) for offer in able])}
    marked = [replace(offer, front=id(offer) in front) for offer in offers]
    return sorted(marked, key=lambda offer: (bool(offer.problem), offer.cost is None, _money(offer)))


def _money(offer: Offer) -> float:
    return offer.cost.seconds if offer.cost else 0.0


def network_problem(config: RunConfig, machine: Hardware) -> str:
    """Return why several machines cannot be predicted; empty for one, or with a known network."""
    if config.launch.nnodes == 1 or machine.network is not None:
        return ""
    return "the network between machines is not known; set hardware.network=GBITS"


def fitting_batch(plan: Plan, prediction: Prediction) -> int | None:
    """Return the largest part of a GPU's images that fits into its memory; None if all do, or not even one does."""
    if prediction.fits:
        return None
    memory = efficiencies()["assumed"]["memory"] * gpus()[str(prediction.machine.gpu)].memory
    return counted.fitting_batch(plan, prediction.memory_gigabytes, memory)


def memory_problem(plan: Plan, prediction: Prediction) -> str:
    """Return why a step does not fit into a GPU's memory and what would fit; empty if it fits."""
    if prediction.fits:
        return ""
    fitting, memory = fitting_batch(plan, prediction), gpus()[str(prediction.machine.gpu)].memory
    hint = "not even one fits" if fitting is None else f"device_batch_size={fitting} fits"
    held = count_of(plan.rank_batch // plan.accumulation, plan.config.task.sample)
    return f"{held} at once need {prediction.memory_gigabytes:.0f} GB of a GPU's {memory:g}; {hint}"
