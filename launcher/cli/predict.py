"""`train predict RUN IMAGE ...`: print the most likely classes of images, by a run's checkpoint or an export.

A segmentation also writes masks; a language model continues a text instead.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from launcher.config.choices import HUB
from launcher.config.compose import compose
from launcher.config.resolved import read, with_views
from launcher.config.schema import RunConfig, Views
from launcher.config.tasks import SHARES
from launcher.console import csv_cell
from launcher.counts import count_of
from launcher.data.dropped import notes_on
from launcher.data.listing import image_files, is_file
from launcher.data.pixel_types import PixelType
from launcher.errors import DONE, FAILED, Problem, UserError, first_few, one_line
from launcher.launch.devices import decide
from launcher.plan.plan import plan_for
from launcher.records.run_folder import RunFolder, existing
from launcher.weights.card import CARD, ONNX, WEIGHTS, from_hub, read_card

if TYPE_CHECKING:
    from launcher.weights.trained_model import PredictedImage, TrainedModel

EXAMPLES = [
    "train predict runs/mild-imagenet-1120-1 image.jpg",
    "train predict runs/mild-imagenet-1120-1 images --top 1 --csv",
    "train predict runs/mild-imagenet-1120-1/export images/a.jpg images/b.jpg --json",
    "train predict runs/mild-imagenet-1120-1 --list images.txt --best",
    "train predict runs/small_segmentation-roads-1120-1 images --masks masks --csv",
    "train predict runs/small_gpt-python_source-1120-1 'import os' --tokens 200 --temperature 0.8 --top-k 40",
]
_STDIN = "-"
_TOP, _TOKENS = 5, 100
_OF_IMAGES, _OF_TEXT = ("list", "top", "csv", "masks", "views"), ("tokens", "temperature", "top_k", "seed")
_MASKS = "masks"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder, its export, or hub:NAME/MODEL")
    parser.add_argument(
        "images", nargs="*", metavar="IMAGE", help="files, or folders of images at any depth; or a text"
    )
    parser.add_argument("--list", metavar="FILE", help="a file with one path per line; - reads standard input")
    parser.add_argument("--top", type=int, metavar="N", help=f"most classes per image (default: {_TOP})")
    parser.add_argument("--best", action="store_true", help="the best checkpoint instead of the newest")
    parser.add_argument(
        "--views", choices=get_args(Views), help="image.eval_views of these predictions (default: the run's)"
    )
    parser.add_argument("--masks", metavar="FOLDER", help=f"where a segmentation writes masks (default: {_MASKS})")
    text = parser.add_argument_group("a text of a language model")
    text.add_argument("--tokens", type=int, metavar="N", help=f"most tokens that continue it (default: {_TOKENS})")
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
    # note: an invalid config or card is refused before the import of torch, which takes seconds
    trained_as = read_card(exported / CARD)[0] if exported else config
    task, extensions = trained_as.task, PixelType.of(trained_as.dataset).extensions
    if "tokens" in task.needs:
        _refuse(arguments, _OF_IMAGES, f"is for images, and {arguments.run} is a language model; remove it")
        return _continue(arguments, partial(load_model, exported, folder, config, best=arguments.best))
    _refuse(arguments, _OF_TEXT, f"is for language models, and {arguments.run} is a model of images; remove it")
    if not (by_pixel := task.labelled == "pixels"):
        _refuse(arguments, ("masks",), f"is for segmentations, and {arguments.run} is none; remove it")
    named = [*arguments.images, *(_listed(arguments.list) if arguments.list else [])]
    if arguments.csv and (missing := [one for one in named if one.endswith(".csv") and not is_file(Path(one))]):
        raise UserError(Problem("is printed; type --csv > FILE to write it", "--csv", missing[0]))
    files, dropped = image_files(named, extensions)
    if not files:
        raise UserError("no images; pass files, folders, or --list FILE")
    if not any(is_file(Path(file)) for file in files):
        raise UserError(f"no such image: {first_few(files)}; pass files, folders, or --list FILE")
    masks = _masks(files, Path(arguments.masks or _MASKS)) if by_pixel else []
    show = _show_json if arguments.json else _show_csv if arguments.csv else _show_line
    from launcher.weights.masks import write_masks
    from launcher.weights.trained_model import predictions

    failed, trained = 0, load_model(exported, folder, config, best=arguments.best, views=arguments.views)
    for note in notes_on(dropped):
        print(f"note: {one_line(note)}", file=sys.stderr)
    titles = trained.task.values.predicted
    if arguments.csv:
        print("file,rank", *titles, "error", sep=",")
    results = write_masks(trained, files, masks, arguments.top or _TOP) if by_pixel else None
    for prediction in results or predictions(trained, files, arguments.top or _TOP):
        if prediction.unreadable:
            failed += 1
            reason = f"{prediction.file} cannot be read as an image ({prediction.unreadable})"
            print(f"error: {one_line(reason)}", file=sys.stderr)
        show(prediction, *titles)
    if failed:
        print(f"error: {failed:,} of {count_of(len(files), 'file')} cannot be read", file=sys.stderr)
    if by_pixel:
        print(f"masks are in {arguments.masks or _MASKS}", file=sys.stderr)
    return FAILED if failed else DONE


def _masks(files: Sequence[str], folder: Path) -> list[Path]:
    """Return the file of each image's mask; raises UserError if two have one, or a file would be overwritten."""
    masks = [folder / f"{Path(file).stem}.png" for file in files]
    if len({*masks}) < len(masks):
        twice = next(mask for number, mask in enumerate(masks) if mask in masks[:number])
        raise UserError(
            Problem(f"two images have masks {twice.name}; predict them into different folders", "--masks", folder)
        )
    # note: they may be the images, or masks that were drawn by hand
    if present := [str(mask) for mask in masks if os.path.lexists(mask)]:
        raise UserError(Problem(f"would overwrite {first_few(present, 1)}; set another folder", "--masks", folder))
    return masks


def _check_counts(arguments: argparse.Namespace) -> None:
    """Raise UserError for a flag out of range."""
    for name in ("top", "tokens", "top_k"):
        if (value := getattr(arguments, name)) is not None and value < 1:
            raise UserError(Problem("must be at least 1", _flag(name), value))
    if not 0 <= (arguments.temperature or 0) < math.inf:
        raise UserError(Problem("must be a number from 0 on", "--temperature", arguments.temperature))


def _refuse(arguments: argparse.Namespace, names: Sequence[str], message: str) -> None:
    """Raise UserError if one of these flags is set."""
    if wrong := [name for name in names if getattr(arguments, name) not in (None, False)]:
        raise UserError(*(f"{_flag(name)} {message}" for name in wrong))


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _continue(arguments: argparse.Namespace, load: Callable[[], TrainedModel]) -> int:
    """Print a text and its continuation."""
    text = " ".join(arguments.images)
    if len(arguments.images) == 1 and is_file(Path(text)):
        message = f'{text} is continued as a text, not read; type "$(cat {text})" to continue what it holds'
        print(f"note: {one_line(message)}", file=sys.stderr)
    from launcher.weights.generate import continuation

    added = continuation(
        load(),
        text,
        tokens=arguments.tokens or _TOKENS,
        temperature=arguments.temperature or 0.0,
        top_k=arguments.top_k,
        seed=arguments.seed or 0,
    )
    print(json.dumps({"text": text, "continuation": added}) if arguments.json else f"{text}{added}")
    return DONE


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


def _listed(name: str) -> list[str]:
    """Read the non-empty lines of a file or of standard input.

    Raises UserError if the file cannot be read.
    """
    try:
        text = sys.stdin.read() if name == _STDIN else Path(name).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise UserError(Problem(f"cannot be read ({error.strerror}); pass another file", "--list", name)) from None
    # note: names may have other separators of lines, and files of Windows start with a byte-order mark
    return [line for line in text.removeprefix("\ufeff").split("\n") if line]


def _show_json(image: PredictedImage, name: str, value: str) -> None:
    rows = [{name: one, value: score} for one, score in image.classes]
    print(json.dumps({"file": image.file, **({"error": image.unreadable} if image.unreadable else {"classes": rows})}))


def _show_csv(image: PredictedImage, name: str, value: str) -> None:
    file, digits = csv_cell(image.file), ".6f" if value in SHARES else ".9g"
    rows = [[file, rank, csv_cell(one), f"{p:{digits}}", ""] for rank, (one, p) in enumerate(image.classes, 1)]
    # note: each file has a row, also one without a class
    none = [file, "", "", "", csv_cell(image.unreadable or "")]
    csv.writer(sys.stdout, lineterminator="\n").writerows(rows or [none])


def _show_line(image: PredictedImage, name: str, value: str) -> None:
    digits = ".2%" if value in SHARES else ".6g"
    classes = "  ".join(f"{one} {score:{digits}}" for one, score in image.classes)
    if not image.unreadable:
        print(one_line(f"{image.file}: {classes or f'no {name}'}"))
