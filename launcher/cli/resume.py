"""`train resume RUN`: go on from the newest checkpoint."""

from __future__ import annotations

import argparse

from launcher.records.folder import existing

EXAMPLES = [
    "train resume runs/mild-imagenet-1120-1",
]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")


def main(arguments: argparse.Namespace) -> int:
    folder = existing(arguments.run)
    from launcher.launch.start import resume

    return resume(folder)
