"""`train diagnose`: find the bottleneck of a run on this machine, and what to change."""

import argparse
from dataclasses import asdict

from rich.table import Table

from launcher.cli import estimate
from launcher.cli.estimate import measured_here, size_columns, size_rows
from launcher.console import console, print_json, table
from launcher.measure.diagnosis import Diagnosis, diagnose
from launcher.records.progress import duration

EXAMPLES = [
    "train diagnose recipe=mild dataset=shapes model=resnet18 launch=cpu batch_size=64",
    "train diagnose recipe=hot dataset.path=/data/imagenet dataloader.workers=4",
    "train diagnose recipe=mild dataset.path=/data/imagenet --json",
]
configure = estimate.configure


def main(arguments: argparse.Namespace) -> int:
    plan, measured = measured_here(arguments)
    diagnosis = diagnose(plan, measured)
    if arguments.json:
        print_json({"device": measured.device, "processes": measured.world_size, **asdict(diagnosis)})
        return 0
    out = console()
    out.print(f"[bold]bottleneck: {diagnosis.bound}[/]")
    out.print(_parts(diagnosis))
    rows = ((*row, bound) for row, bound in zip(size_rows(diagnosis.sizes), diagnosis.bounds, strict=True))
    columns = size_columns(plan.config.task)
    out.print(table(*columns, "bound", numbers=columns, rows=rows))
    for line in diagnosis.advice or ["data loading needs no change"]:
        out.print(f"- {line}", markup=False)
    return 0


def _parts(diagnosis: Diagnosis) -> Table:
    times = {
        "loading only": diagnosis.load_seconds,
        "copies to the device only": diagnosis.transfer_seconds,
        "steps only": diagnosis.step_seconds,
        "all together, as in the run": diagnosis.both_seconds,
        "saved if loading were free": diagnosis.gain * diagnosis.both_seconds,
    }
    rows = ((name, duration(time), f"{time / diagnosis.both_seconds:.0%}") for name, time in times.items())
    return table("all steps of the run", "time", "share of the time together", rows=rows)
