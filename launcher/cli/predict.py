"""`train predict RUN IMAGE ...`: print the most likely classes of images, by a run's checkpoint or an export.

A segmentation also writes masks; a language model continues a text instead.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from launcher.config.compose import compose
from launcher.config.resolved import with_views
from launcher.config.schema import RunConfig, Views
from launcher.config.tasks import flag_of
from launcher.errors import Problem, UserError
from launcher.launch.devices import decide
from launcher.plan.plan import plan_for
from launcher.records.run_folder import RunFolder
from launcher.tasks.presenters import MASKS, TOKENS, TOP
from launcher.weights.card import find_trained

if TYPE_CHECKING:
    from launcher.weights.trained_model import TrainedModel

EXAMPLES = [
    "train predict runs/mild-imagenet-1120-1 image.jpg",
    "train predict runs/mild-imagenet-1120-1 images --top 1 --csv",
    "train predict runs/mild-imagenet-1120-1/export images/a.jpg images/b.jpg --json",
    "train predict runs/mild-imagenet-1120-1 --list images.txt --best",
    "train predict runs/small_segmentation-roads-1120-1 images --masks masks --csv",
    "train predict runs/small_gpt-python_source-1120-1 'import os' --tokens 200 --temperature 0.8 --top-k 40",
]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder, its export, or hub:NAME/MODEL")
    parser.add_argument(
        "images", nargs="*", metavar="IMAGE", help="files, or folders of images at any depth; or a text"
    )
    parser.add_argument("--list", metavar="FILE", help="a file with one path per line; - reads standard input")
    parser.add_argument("--top", type=int, metavar="N", help=f"most classes per image (default: {TOP})")
    parser.add_argument("--best", action="store_true", help="the best checkpoint instead of the newest")
    parser.add_argument(
        "--views", choices=get_args(Views), help="image.eval_views of these predictions (default: the run's)"
    )
    parser.add_argument("--masks", metavar="FOLDER", help=f"where a segmentation writes masks (default: {MASKS})")
    text = parser.add_argument_group("a text of a language model")
    text.add_argument("--tokens", type=int, metavar="N", help=f"most tokens that continue it (default: {TOKENS})")
    text.add_argument("--temperature", type=float, metavar="T", help="0 takes the likeliest (default)")
    text.add_argument("--top-k", type=int, metavar="K", help="draw from so many likeliest tokens (default: all)")
    text.add_argument("--seed", type=int, metavar="N", help="of the draws (default: 0)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one line of JSON per image")
    form.add_argument("--csv", action="store_true", help="one row per class or number")


def main(arguments: argparse.Namespace) -> int:
    _check_counts(arguments)
    # note: an invalid config, card or word is refused before the import of torch, which takes seconds
    source, config = find_trained(arguments.run)
    config.task.refuse_flags(vars(arguments), arguments.run)
    presenter = config.task.presenter(arguments, config)
    code: int = presenter.present(load_model(source, config, best=arguments.best, views=arguments.views))
    return code


def _check_counts(arguments: argparse.Namespace) -> None:
    """Raise UserError for a flag out of range."""
    for name in ("top", "tokens", "top_k"):
        if (value := getattr(arguments, name)) is not None and value < 1:
            raise UserError(Problem("must be at least 1", flag_of(name), value))
    if not 0 <= (arguments.temperature or 0) < math.inf:
        raise UserError(Problem("must be a number from 0 on", "--temperature", arguments.temperature))


def load_model(source: RunFolder | Path, config: RunConfig, *, best: bool, views: Views | None = None) -> TrainedModel:
    """Load the network of a run or an export (`find_trained`) on the device of this machine.

    views: `image.eval_views`, that of the run or export without one.
    """
    from launcher.weights.trained_model import exported_model, load_checkpoint, trained_model

    # note: the devices of an export's run are those of another machine
    launch = config.launch if isinstance(source, RunFolder) else compose([]).config.launch
    kind = decide(replace(launch, nproc=1)).kind
    if isinstance(source, RunFolder):
        return trained_model(plan_for(with_views(config, views), 1), load_checkpoint(source, best=best), kind)
    return exported_model(source, kind, views)
