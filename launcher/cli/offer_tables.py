"""The tables of `train plan --on`: one machine in detail, or all in a list that fits a terminal."""

from collections.abc import Sequence

from rich.table import Table

from launcher.config.groups import price_age
from launcher.config.tasks import TaskConfig
from launcher.console import table, verbatim
from launcher.prediction.offers import Offer
from launcher.prediction.prediction import Prediction, main_bound
from launcher.records.progress import duration

_MOST_PHASES = 6


def list_of(candidates: Sequence[Offer]) -> Table:
    """Return a row per possible offer, without ranges, in at most 100 columns."""
    columns = ("", "machine", "GPUs", "price", "wall clock", "cost", "bottleneck")
    cells = table(*columns, numbers=("wall clock", "cost"))
    for offer in candidates:
        if not offer.problem:
            cells.add_row(
                "*" if offer.front else "", *_what(offer), duration(offer.wall.seconds), _money(offer),
                main_bound(offer.prediction.phases),
            )  # fmt: skip
    cells.caption, cells.caption_justify = "*: no other machine is both cheaper and faster", "left"
    return cells


def left_out(candidates: Sequence[Offer]) -> list[str]:
    """Return a note for each reason why machines cannot run, and for each age of prices that are old or undated."""
    groups: dict[str, list[str]] = {}
    for offer in candidates:
        age = price_age(offer.machine)
        if offer.problem:
            groups.setdefault(f"not possible: {offer.problem}", []).append(offer.machine.name)
        elif offer.cost and age != offer.machine.price_date:
            groups.setdefault(f"price: {age}", []).append(offer.machine.name)
    return [f"{reason}: {', '.join(dict.fromkeys(names))}" for reason, names in groups.items()]


def table_of(candidates: Sequence[Offer], task: TaskConfig) -> Table:
    """Return the offers of one machine with their ranges."""
    columns = ("machine", "GPUs", "price", "wall clock", "", "cost", "", task.speeds[1], "bottleneck", "price date")
    cells = table(*columns, numbers=("wall clock", "cost", task.speeds[1]))
    for offer in candidates:
        cost = offer.cost
        cells.add_row(
            *_what(offer), duration(offer.wall.seconds), f"{duration(offer.wall.low)} to {duration(offer.wall.high)}",
            _money(offer), f"{cost.low:,.2f} to {cost.high:,.2f}" if cost else "",
            f"{task.speed(offer.prediction.estimate.samples_per_second):,.0f}", main_bound(offer.prediction.phases),
            verbatim(price_age(offer.machine)) if cost else "",
        )  # fmt: skip
    return cells


def phases_of(prediction: Prediction, task: TaskConfig) -> Table:
    """Return the steps and the bottleneck at some of the views."""
    cells = table(task.view_title, "steps", "step time", "bottleneck")
    phases = prediction.phases
    last = len(phases) - 1
    shown = sorted({round(last * row / (_MOST_PHASES - 1)) for row in range(_MOST_PHASES)})
    for phase in (phases[number] for number in shown):
        cells.add_row(str(phase.view), f"{phase.steps:,}", f"{1000 * phase.seconds:,.1f} ms", phase.bound)
    return cells


def _what(offer: Offer) -> tuple[str, str, str]:
    machine = offer.machine
    several = f"{offer.nodes} x " if offer.nodes > 1 else ""
    return (
        verbatim(several + machine.name),
        verbatim(f"{machine.gpus} x {machine.gpu}"),
        "spot" if offer.spot else "on demand",
    )


def _money(offer: Offer) -> str:
    return f"{offer.cost.seconds:,.2f} {verbatim(offer.machine.currency)}" if offer.cost else "-"
