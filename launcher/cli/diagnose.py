"""`train diagnose`: what bounds a run on this machine, and what to change."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from launcher.cli.estimate import seconds
from launcher.config.compose import compose
from launcher.config.schema import RunConfig
from launcher.console import console, table
from launcher.data.folder import is_folder, splits
from launcher.measure.diagnosis import Diagnosis, ImageFacts, Surroundings, diagnose, image_facts
from launcher.measure.measurement import Measurement
from launcher.records.progress import duration

EXAMPLES = [
    "train diagnose recipe=mild dataset=shapes model=resnet18 launch=cpu batch_size=64",
    "train diagnose recipe=hot dataset.path=/data/imagenet dataloader.workers=4",
    "train diagnose recipe=mild dataset.path=/data/imagenet --json",
]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--seconds", type=seconds, default=1.0, metavar="S", help="for each kind of step (default: 1)")
    parser.add_argument("--json", action="store_true", help="as one JSON object")


def main(arguments: argparse.Namespace) -> int:
    composed = compose(arguments.overrides)
    from launcher.measure.launch import measure_steps, prepare_here

    prepared = prepare_here(composed)
    plan, measured = prepared.plan, measure_steps(prepared, arguments.seconds)
    found = diagnose(plan, surroundings(plan.config, measured))
    if arguments.json:
        print(json.dumps({"device": measured.device, "processes": measured.world_size, **asdict(found)}, indent=2))
        return 0
    out = console()
    out.print(f"[bold]bound by: {found.bound}[/]")
    out.print(_parts(found))
    out.print(_sizes(found))
    for line in found.advice or ["nothing to change in how images are loaded"]:
        out.print(f"- {line}", markup=False)
    return 0


def surroundings(config: RunConfig, measured: Measurement) -> Surroundings:
    """This machine and these images."""
    import PIL
    import psutil

    return Surroundings(
        measured=measured,
        memory_bytes=psutil.virtual_memory().total,
        pillow_simd=".post" in PIL.__version__,
        images=_images(config),
    )


def _images(config: RunConfig) -> ImageFacts | None:
    """Of class folders of the user's; the built-in images are small, and synthetic ones are no files."""
    path = config.dataset.path
    if config.dataset.kind != "folder" or config.dataloader.name == "synthetic":
        return None
    if not path or not is_folder(Path(path) if config.dataset.val_split else Path(path) / "train"):
        return None
    return image_facts(splits(Path(path), config.dataset, config.seed)[0])


def _parts(found: Diagnosis) -> Table:
    times = {
        "loading alone": found.load_seconds,
        "copies to the device alone": found.transfer_seconds,
        "steps alone": found.step_seconds,
        "together, as they run": found.both_seconds,
        "saved, if loading cost nothing": found.gain * found.both_seconds,
    }
    rows = ((name, duration(time), f"{time / found.both_seconds:.0%}") for name, time in times.items())
    return table("all steps of the run", "time", "of the time together", rows=rows)


def _sizes(found: Diagnosis) -> Table:
    columns = ("image px", "steps", "loading", "step", "together")
    shown = table(*columns, "bound", numbers=columns)
    for size, bound in zip(found.sizes, found.bounds, strict=True):
        times = (size.load_seconds, size.step_seconds, size.both_seconds)
        shown.add_row(str(size.image_size), f"{size.steps:,}", *(f"{1000 * time:,.1f} ms" for time in times), bound)
    return shown
