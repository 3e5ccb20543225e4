"""`train resume RUN [key=value ...]`: go on from the newest checkpoint."""

from __future__ import annotations

import argparse

from launcher.records.folder import existing

EXAMPLES = [
    "train resume runs/mild-imagenet-1120-1",
    "train resume runs/mild-imagenet-1120-1 launch.nproc=4",
    "train resume runs/mild-imagenet-1120-1 epochs=60 checkpoint.every_minutes=5",
]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument(
        "words", metavar="key=value", nargs="*", default=[], help="what may change: the length, launch, loading"
    )


def main(arguments: argparse.Namespace) -> int:
    folder = existing(arguments.run)
    from launcher.launch.start import resume

    return resume(folder, arguments.words)
