"""`train estimate`: estimate a run's time, cost and bottleneck from a few seconds of its real steps."""

import argparse
from collections.abc import Iterator
from dataclasses import asdict

from rich.table import Table

from launcher.config.compose import compose
from launcher.config.groups import is_named, machines, price_age
from launcher.config.hardware import Hardware
from launcher.config.resolved import as_mapping
from launcher.config.tasks import TaskConfig
from launcher.console import console, facts, print_json, table, verbatim
from launcher.counts import count_of
from launcher.measure.diagnosis import Bound, Diagnosis, diagnose
from launcher.measure.estimate import Estimate, Price, SizeCost, estimate, prices
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


def main(arguments: argparse.Namespace) -> int:
    composed = arguments.composed or compose(arguments.overrides)
    from launcher.measure.launch import measure_steps, prepare_here
    from launcher.prediction.start import with_fastest_steps

    prepared = with_fastest_steps(prepare_here(composed, arguments.seen))
    plan, measured = prepared.plan, measure_steps(prepared, arguments.seconds)
    result, diagnosis = estimate(plan, measured), diagnose(plan, measured)
    offers = prices(result, hardware(plan.config.hardware, measured.device))
    machine = {"device": measured.device, "processes": measured.world_size}
    steps = [asdict(step) for step in measured.steps]
    path = save_estimate(plan.config, {"config": as_mapping(plan.config), **machine, "steps": steps, **asdict(result)})
    if arguments.json:
        print_json({**machine, **asdict(result), **asdict(diagnosis), "prices": list(map(asdict, offers))})
        return 0
    out = console()
    task = plan.config.task
    out.print(_times(result, task))
    columns = (task.view_title, "steps", "step alone", "loading alone", "together")
    out.print(table(*columns, "bound", numbers=columns, rows=_size_rows(result.sizes, diagnosis.bounds)))
    for line in _lines(diagnosis):
        out.print(verbatim(line))
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
        (name, duration(span.seconds), f"{duration(span.low)} to {duration(span.high)}", note)
        for name, (span, note) in spans.items()
    )


def _size_rows(sizes: list[SizeCost], bounds: list[Bound]) -> Iterator[tuple[str, ...]]:
    for cost, bound in zip(sizes, bounds, strict=True):
        times = (cost.step_seconds, cost.load_seconds, cost.both_seconds)
        yield str(cost.view), f"{cost.steps:,}", *(f"{1000 * time:,.1f} ms" for time in times), bound


def _lines(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield what bounds all steps of the run, and what to change."""
    yield f"bottleneck: {diagnosis.bound}; {diagnosis.gain:.0%} of the time saved if loading were free"
    for line in diagnosis.advice or ["data loading needs no change"]:
        yield f"- {line}"


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
