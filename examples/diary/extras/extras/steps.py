"""`train steps RUN`: how many steps a run has done."""

import argparse

from launcher.records.metrics import read_metrics
from launcher.records.run_folder import existing

EXAMPLES = ["train steps runs/mild-imagenet-1"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="a run folder")


def main(arguments: argparse.Namespace) -> int:
    print("steps:", max((row["step"] for row in read_metrics(existing(arguments.run).metrics)), default=0))
    return 0
