"""`train [key=value ...]`: compose the config, check it, train, and print the result."""

import argparse

from launcher.cli.listed_runs import listed
from launcher.config.compose import compose
from launcher.console import only_json, print_json

EXAMPLES = [
    "train recipe=mild epochs=16 dataset=imagenet dataset.path=/data/imagenet",
    "train recipe=hot epochs=240 algorithms.cutmix=on algorithms.mixup=off",
    "train recipe=mild dataset=shapes model=resnet18 launch=cpu batch_size=64 schedule.dilate=0.2",
    "train algorithms=[ema,blurpool] optimizer.lr=0.5 launch.nproc=2",
]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="the run at its end as one JSON object")
    parser.add_argument("overrides", nargs="*", metavar="key=value")


def main(arguments: argparse.Namespace) -> int:
    composed = arguments.composed or compose(arguments.overrides)
    from launcher.launch.start import start
    from launcher.prediction.start import STARTS

    with only_json(arguments.json):
        ended = start(composed, STARTS, seen=arguments.seen)
    if arguments.json:
        print_json(listed(ended.folder))
    return ended.code
