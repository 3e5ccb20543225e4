"""`train export RUN`: the weights as safetensors, a model card, and a module that rebuilds the network anywhere."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from launcher.console import console, progress_bars
from launcher.records.folder import existing

EXAMPLES = [
    "train export runs/mild-imagenet-1120-1",
    "train export runs/mild-imagenet-1120-1 -o models/mild",
]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("--best", action="store_true", help="the checkpoint of the best top-1 instead of the newest")
    parser.add_argument("-o", "--output", metavar="FOLDER", help="where to (default: RUN/export)")


def main(arguments: argparse.Namespace) -> int:
    folder = existing(arguments.run, saved=True)
    from launcher.models.export import WEIGHTS
    from launcher.training.exporting import export_run

    output = Path(arguments.output) if arguments.output else folder.path / "export"
    with progress_bars(console(sys.stderr)) as (_, report):
        checked = export_run(folder, output, best=arguments.best, report=partial(report, "checking the export"))
    found = "the logits of the run" if checked.top1 is None else f"top-1 {checked.top1:.2%}"
    print(f"loaded without this project: {found} on {checked.pictures:,} {checked.on}", file=sys.stderr)
    print(output / WEIGHTS)
    return 0
