"""`train predict RUN IMAGE ...`: print the most likely classes of images, by a run's checkpoint or an export.

A segmentation also writes masks; a language model continues a text instead.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from launcher.config.choices import HUB
from launcher.config.compose import compose
from launcher.config.options import code_of
from launcher.config.resolved import read, with_views
from launcher.config.schema import RunConfig, Views
from launcher.config.tasks import flag_of
from launcher.data.listing import is_file
from launcher.errors import Problem, UserError
from launcher.launch.devices import decide
from launcher.plan.plan import plan_for
from launcher.records.run_folder import RunFolder, existing
from launcher.tasks.presenters import MASKS, TOKENS, TOP
from launcher.weights.card import CARD, ONNX, WEIGHTS, from_hub, read_card

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
    exported = exported_at(arguments.run)
    folder = None if exported else existing(arguments.run, saved=True)
    config = read(folder.config) if folder else compose([]).config
    # note: an invalid config, card or word is refused before the import of torch, which takes seconds
    trained_as = read_card(exported / CARD)[0] if exported else config
    trained_as.task.refuse_flags(vars(arguments), arguments.run)
    presenter = code_of(type(trained_as.task)).presenter(arguments, trained_as)
    code: int = presenter.present(load_model(exported, folder, config, best=arguments.best, views=arguments.views))
    return code


def _check_counts(arguments: argparse.Namespace) -> None:
    """Raise UserError for a flag out of range."""
    for name in ("top", "tokens", "top_k"):
        if (value := getattr(arguments, name)) is not None and value < 1:
            raise UserError(Problem("must be at least 1", flag_of(name), value))
    if not 0 <= (arguments.temperature or 0) < math.inf:
        raise UserError(Problem("must be a number from 0 on", "--temperature", arguments.temperature))


def exported_at(path: str) -> Path | None:
    """Return the folder of an export: its own path, that of its weights, or its download; None for a run folder.

    Raises UserError for any other file, and for an export without weights or model card.
    """
    if path.startswith(HUB):
        folder = from_hub(path)
        if not is_file(folder / CARD):
            raise UserError(f"{path} has no {CARD}, so it is no published run; set model.weights to use its weights")
        return folder
    folder = Path(path)
    if is_file(folder):
        if folder.name not in (WEIGHTS, ONNX):
            raise UserError(f"{path} is a file; pass a run folder, or the output folder of train export")
        folder = folder.parent
    elif RunFolder(folder).exists() or not any(is_file(folder / name) for name in (CARD, ONNX)):
        return None
    if not is_file(folder / WEIGHTS):
        raise UserError(
            f"{folder} has no {WEIGHTS}; type train export RUN to write it, or run the lines of an ONNX export's card"
        )
    return folder


def load_model(
    exported: Path | None, folder: RunFolder | None, config: RunConfig, *, best: bool, views: Views | None = None
) -> TrainedModel:
    """Load the network of an export, or else of a run and its config, on the device of this machine.

    views: `image.eval_views`, that of the run or export without one.
    """
    from launcher.weights.trained_model import exported_model, load_checkpoint, trained_model

    kind = decide(replace(config.launch, nproc=1)).kind
    if folder:
        return trained_model(plan_for(with_views(config, views), 1), load_checkpoint(folder, best=best), kind)
    assert exported is not None
    return exported_model(exported, kind, views)
