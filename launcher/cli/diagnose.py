"""`train diagnose`: what bounds a run on this machine, and what to change."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from rich.table import Table

from launcher.cli import estimate
from launcher.cli.estimate import SIZE_COLUMNS, measured_here, size_rows
from launcher.console import console, table
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
    found = diagnose(plan, measured)
    if arguments.json:
        print(json.dumps({"device": measured.device, "processes": measured.world_size, **asdict(found)}, indent=2))
        return 0
    out = console()
    out.print(f"[bold]bottleneck: {found.bound}[/]")
    out.print(_parts(found))
    rows = ((*row, bound) for row, bound in zip(size_rows(found.sizes), found.bounds, strict=True))
    out.print(table(*SIZE_COLUMNS, "bound", numbers=SIZE_COLUMNS, rows=rows))
    for line in found.advice or ["data loading needs no change"]:
        out.print(f"- {line}", markup=False)
    return 0


def _parts(found: Diagnosis) -> Table:
    times = {
        "loading only": found.load_seconds,
        "copies to the device only": found.transfer_seconds,
        "steps only": found.step_seconds,
        "all together, as in the run": found.both_seconds,
        "saved if loading were free": found.gain * found.both_seconds,
    }
    rows = ((name, duration(time), f"{time / found.both_seconds:.0%}") for name, time in times.items())
    return table("all steps of the run", "time", "share of the time together", rows=rows)
