"""`train export RUN`: the weights as safetensors under torchvision's names, with a model card."""

from __future__ import annotations

import argparse
from pathlib import Path

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
    from launcher.training.finished import export_run

    print(
        export_run(folder, Path(arguments.output) if arguments.output else folder.path / "export", best=arguments.best)
    )
    return 0
