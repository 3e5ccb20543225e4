"""`train prepare`: write a data set's FFCV files, or check them against their manifests."""

from __future__ import annotations

import argparse

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from launcher.cli.console import console, verbatim
from launcher.config.compose import compose
from launcher.errors import Problem, UserError

EXAMPLES = [
    "train prepare dataset=imagenet dataset.path=/data/imagenet",
    "train prepare dataset=image_folder dataset.path=/data/flowers dataloader.files.max_side=400 --skip-bad",
    "train prepare dataset=imagenet dataset.path=/data/imagenet --check",
]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--check", action="store_true", help="compare the files with their checksums, write nothing")
    parser.add_argument("--skip-bad", action="store_true", help="leave out pictures that cannot be read")


def main(arguments: argparse.Namespace) -> int:
    config = compose(["dataloader=ffcv", *arguments.overrides]).config
    if config.dataloader.name != "ffcv":
        raise UserError(Problem("needs no files; prepare writes those of dataloader=ffcv", "dataloader", "torchvision"))
    try:
        from launcher.data.prepare import prepare, verify
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is missing, which comes with FFCV; make setup installs it") from None

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f}%"))
    with Progress(*columns, TimeRemainingColumn(), console=console(), transient=True) as progress:
        bars = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in bars:
                bars[what] = progress.add_task(what, total=total)
            progress.update(bars[what], completed=done)

        found = (
            verify(config, report) if arguments.check else prepare(config, skip_bad=arguments.skip_bad, report=report)
        )
        for path, manifest in found:
            unusual = "".join(f"; {count:,} were {was}" for was, count in manifest.converted.items())
            left_out = f"; {len(manifest.skipped):,} left out, listed in the manifest" if manifest.skipped else ""
            facts = f"{manifest.samples:,} pictures, {manifest.bytes / 1e6:,.1f} MB"
            checked = ", as written" if arguments.check else ""
            progress.console.print(verbatim(f"{path}: {facts}{unusual}{left_out}{checked}"))
    return 0
