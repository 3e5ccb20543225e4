"""`train mlperf RUN`: write mlperf.log, in MLPerf Training's format, from a run's records."""

from __future__ import annotations

import argparse

from lab.study.mlperf import write_mlperf
from launcher.config.resolved import read
from launcher.errors import UserError
from launcher.plan.plan import plan_for
from launcher.records.folder import existing
from launcher.records.metrics import read_metrics

EXAMPLES = ["train mlperf runs/mlperf_lars-imagenet-1120-1"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")


def main(arguments: argparse.Namespace) -> int:
    folder = existing(arguments.run)
    sizes = [row["world_size"] for row in read_metrics(folder.metrics) if row["kind"] == "start"]
    if not sizes:
        raise UserError(f"{folder.path} has no records yet; the log is written from them")
    print(write_mlperf(plan_for(read(folder.config), sizes[0]), folder))
    return 0
