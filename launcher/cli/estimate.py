"""`train estimate`: estimate a run's time and cost from a few seconds of its real steps."""

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import asdict

from rich.table import Table

from launcher.config.compose import compose
from launcher.config.groups import is_named, machines, price_age
from launcher.config.resolved import as_mapping
from launcher.config.schema import Hardware
from launcher.config.tasks import TaskConfig
from launcher.console import console, facts, print_json, table, verbatim
from launcher.counts import count_of
from launcher.measure.estimate import CONFIDENCE, Estimate, Measurement, Price, SizeCost, estimate, prices
from launcher.plan.plan import Plan
from launcher.records.progress import duration
from launcher.records.summary import save_estimate

EXAMPLES = [
    "train estimate recipe=mild dataset=shapes model=resnet18 launch=cpu batch_size=64 schedule.dilate=0.25",
    "train estimate recipe=hot epochs=240 dataset.path=/data/imagenet",
    "train estimate recipe=mild dataloader=synthetic --seconds 5 --json",
]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--seconds", type=seconds, default=2.0, metavar="S", help="for each kind of step (default: 2)")
    parser.add_argument("--json", action="store_true", help="as one JSON object")


def seconds(text: str) -> float:
    """Parse the seconds of a measurement."""
    value = float(text)
    if not 0.1 <= value <= 600:
        raise ValueError
    return value


def measured_here(arguments: argparse.Namespace) -> tuple[Plan, Measurement]:
    """Return the plan of a command line's run, and its parts measured on this machine."""
    composed = arguments.composed or compose(arguments.overrides)
    from launcher.measure.launch import measure_steps, prepare_here

    prepared = prepare_here(composed)
    return prepared.plan, measure_steps(prepared, arguments.seconds)


def main(arguments: argparse.Namespace) -> int:
    plan, measured = measured_here(arguments)
    result = estimate(plan, measured)
    offers = prices(result, hardware(plan.config.hardware, measured.device))
    machine = {"device": measured.device, "processes": measured.world_size}
    steps = [asdict(step) for step in measured.steps]
    path = save_estimate(plan.config, {"config": as_mapping(plan.config), **machine, "steps": steps, **asdict(result)})
    if arguments.json:
        print_json({**machine, **asdict(result), "prices": list(map(asdict, offers))})
        return 0
    out = console()
    task = plan.config.task
    out.print(_times(result, task))
    columns = size_columns(task)
    out.print(table(*columns, numbers=columns, rows=size_rows(result.sizes)))
    out.print(_prices(offers) if offers else "no price; set hardware.price_per_hour=2.5, or see train ls hardware")
    where = f"{measured.world_size} x {measured.device}"
    out.print(verbatim(f"measured on {where}; saved in {path}, with which the summary of the run compares its times"))
    return 0


def hardware(chosen: Hardware, device: str) -> list[Hardware]:
    """Return the chosen machine, then all others with its GPU or with the measured one."""
    others = [machine for machine in machines().values() if machine.gpu and machine.name != chosen.name]
    return [chosen, *(machine for machine in others if machine.gpu == chosen.gpu or is_named(machine.gpu, device))]


def _times(result: Estimate, task: TaskConfig) -> Table:
    spans = {
        "training": (result.training, f"{task.speed(result.samples_per_second):,.0f} {task.speeds[1]}"),
        "evaluation": (result.evaluation, count_of(result.evaluations, "time")),
        "saving": (result.saving, count_of(result.checkpoints, "checkpoint")),
        "wall clock": (result.wall, f"{duration(result.start_seconds)} of it before the first batch"),
    }
    return facts(
        (name, duration(span.seconds), f"{duration(span.low)} to {duration(span.high)} ({CONFIDENCE:.0%})", note)
        for name, (span, note) in spans.items()
    )


def size_columns(task: TaskConfig) -> tuple[str, ...]:
    """Return the titles of the cells of `size_rows`."""
    return task.view_title, "steps", "step alone", "loading alone", "together"


def size_rows(sizes: Iterable[SizeCost]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of `size_columns` for each view."""
    for cost in sizes:
        times = (cost.step_seconds, cost.load_seconds, cost.both_seconds)
        yield str(cost.view), f"{cost.steps:,}", *(f"{1000 * time:,.1f} ms" for time in times)


def _prices(offers: list[Price]) -> Table:
    cells = table("instance", "GPUs", "per hour", "this run", "price date")
    cells.title, cells.title_justify = "cost of the wall-clock time on an instance as fast as this machine", "left"
    for offer in offers:
        machine, currency = offer.hardware, offer.hardware.currency
        gpus = f"{machine.gpus} x {machine.gpu}" if machine.gpu else "-"
        cost = f"{offer.cost:,.2f} {currency} ({offer.low:,.2f} to {offer.high:,.2f})"
        source = ", ".join(filter(None, (price_age(machine), machine.price_source)))
        cells.add_row(machine.name, gpus, f"{machine.price_per_hour:,.2f} {currency}", cost, source)
    return cells
