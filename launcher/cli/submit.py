"""`train submit`: the same command as a job for Slurm, SkyPilot or Kubernetes, printed or submitted."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from launcher.config.compose import compose
from launcher.launch.devices import planned
from launcher.launch.prepare_run import prepare_run
from launcher.submit import kubernetes, sky, slurm
from launcher.submit.job import Job, make_job
from launcher.submit.queue import FILE, send
from launcher.submit.values import PREFIX, Kubernetes, Sky, Slurm, read_values

EXAMPLES = [
    "train submit --slurm recipe=hot epochs=240 dataset.path=/data/imagenet",
    "train submit --slurm recipe=mild batch_size=4096 launch.nnodes=2 submit.time=08:00:00 --run",
    "train submit --sky recipe=hot dataset.path=/data submit.data=s3://mine/imagenet submit.runs=s3://mine/runs",
    "train submit --kubernetes recipe=mild dataset.path=/data/imagenet submit.image=registry.example/train:1",
]
_COMMANDS = {
    "slurm": (["sbatch", FILE], ".sh"),
    "sky": (["sky", "jobs", "launch", "--yes", "--detach-run", FILE], ".yaml"),
    "kubernetes": (["kubectl", "create", "--filename", FILE], ".yaml"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--slurm", dest="kind", action="store_const", const="slurm", help="an sbatch script")
    kind.add_argument("--sky", dest="kind", action="store_const", const="sky", help="a SkyPilot task")
    kind.add_argument("--kubernetes", dest="kind", action="store_const", const="kubernetes", help="a manifest")
    parser.add_argument("--run", action="store_true", help="submit it instead of printing it")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="the run; submit.KEY=VALUE is for the job")


def main(arguments: argparse.Namespace) -> int:
    of_the_job = [word for word in arguments.overrides if word.startswith(PREFIX)]
    words = [word for word in arguments.overrides if not word.startswith(PREFIX)]
    composed = compose(words)
    prepare_run(composed, devices=planned(composed.config, composed.config.hardware.gpus), must_exist=False)
    text = _RENDER[arguments.kind](make_job(composed.config, words), of_the_job)
    if arguments.run:
        return send(text, *_COMMANDS[arguments.kind])
    print(text, end="")
    return 0


def _slurm(job: Job, words: list[str]) -> str:
    return slurm.render(job, read_values(Slurm, words), str(Path(sys.argv[0]).resolve()))


def _sky(job: Job, words: list[str]) -> str:
    return sky.render(job, read_values(Sky, words))


def _kubernetes(job: Job, words: list[str]) -> str:
    return kubernetes.render(job, read_values(Kubernetes, words))


_RENDER: dict[str, Callable[[Job, list[str]], str]] = {"slurm": _slurm, "sky": _sky, "kubernetes": _kubernetes}
