"""`train eval RUN`: evaluate the newest checkpoint on this machine, in one process."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace

from launcher.config.resolved import read
from launcher.launch.devices import decide
from launcher.records.folder import existing

EXAMPLES = [
    "train eval runs/mild-imagenet-1120-1",
    "train eval runs/mild-imagenet-1120-1 --json",
]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("--best", action="store_true", help="the checkpoint of the best top-1 instead of the newest")
    parser.add_argument("--json", action="store_true", help="as one JSON object")


def main(arguments: argparse.Namespace) -> int:
    folder = existing(arguments.run, saved=True)
    devices = decide(replace(read(folder.config).launch, nproc=1))
    from launcher.training.finished import evaluate_run

    step, result = evaluate_run(folder, devices.kind, best=arguments.best)
    if arguments.json:
        print(json.dumps({"step": step, **vars(result)}))
    else:
        print(f"step {step:,}: top-1 {result.top1:.2%}  top-5 {result.top5:.2%}  loss {result.loss:.4f}")
        print(f"{result.samples:,} pictures on {devices}")
    return 0
