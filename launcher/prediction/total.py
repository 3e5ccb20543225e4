"""The predicted time and cost of runs, in one line."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from launcher.config.gpus import gpus
from launcher.measure.estimate import Span
from launcher.plan.plan import Plan
from launcher.prediction.offers import Offer, network_problem, offers_of
from launcher.prediction.prediction import Predictor
from launcher.prediction.profiles import read_profiles
from launcher.records.progress import duration


def total(plans: Sequence[Plan], *, is_spot: bool = False) -> str | None:
    """Return the sums of the time and cost of runs that start on the same machine, with the sums of their ranges.

    None where one cannot be predicted: on a part of a machine, an unknown network or an unknown GPU.
    """
    found = [_offer(plan, is_spot=is_spot) for plan in plans]
    known = [offer for offer in found if offer is not None]
    if len(known) < len(found):
        return None
    last, wall = known[-1], _sum(offer.wall for offer in known)
    cost = None if last.cost is None else _sum(offer.cost for offer in known if offer.cost is not None)
    time = f"{duration(wall.seconds)} ({duration(wall.low)} to {duration(wall.high)})"
    unit = last.machine.currency
    money = f" and {cost.seconds:,.2f} {unit} ({cost.low:,.2f} to {cost.high:,.2f})" if cost else ""
    spot = " on spot machines" if last.spot else ""
    return f"in all {time}{money}{spot}, predicted: {last.prediction.made_from}"


def _sum(spans: Iterable[Span]) -> Span:
    return Span(*map(sum, zip(*((span.seconds, span.low, span.high) for span in spans), strict=True)))


def _offer(plan: Plan, *, is_spot: bool) -> Offer | None:
    """Return the run's time and cost on its machine; None if it cannot be predicted."""
    config, machine = plan.config, plan.config.hardware
    is_whole = config.launch.device != "cpu" and plan.world_size == (machine.gpus or 0) * config.launch.nnodes
    if machine.gpu not in gpus() or not is_whole or network_problem(config, machine):
        return None
    try:
        several = {one.spot: one for one in offers_of(Predictor(plan), machine, read_profiles(Path(config.runs))[0])}
    except Exception:  # note: a network of the user's that cannot be traced must not stop a job
        return None
    offer = several.get(is_spot, several[False])
    return None if offer.problem else offer
