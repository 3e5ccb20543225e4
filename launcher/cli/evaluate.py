"""`train eval RUN`: evaluate the newest checkpoint in one process, also on other images and by class."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.config.fields import EVALUATION
from launcher.config.resolved import continued, read
from launcher.config.schema import RunConfig
from launcher.console import console, print_json, table, verbatim
from launcher.counts import count_of
from launcher.data.identity import identity
from launcher.data.unreadable import read_skipped
from launcher.errors import Problem, UserError
from launcher.files import page
from launcher.files.disk import reason
from launcher.files.outputs import check_file, check_replaced
from launcher.launch.devices import decide
from launcher.records.run_folder import RunFolder, existing, noted_datasets

if TYPE_CHECKING:
    from launcher.weights.trained_model import CheckpointResult

EXAMPLES = [
    "train eval runs/mild-imagenet-1120-1",
    "train eval runs/mild-imagenet-1120-1 --json",
    "train eval runs/mild-imagenet-1120-1 dataset.path=/data/imagenetv2 --by-class",
    "train eval runs/mild-imagenet-1120-1 dataset.path=/data/imagenet-r --only-present",
    "train eval runs/mild-imagenet-1120-1 --by-class -o classes --json",
    "train eval runs/mild-imagenet-1120-1 dataset.path=/data/imagenet-c/fog/3",
    "train eval runs/mild-imagenet-1120-1 --csv images.csv --worst-first",
]
_GALLERY, _TOP = "gallery.html", 5
_TABLES = [f"by_{what}.csv" for what in ("class", "number", "place")]
_FILES = [_GALLERY, *_TABLES, "confusion.png", "reliability.png", "scatter.png"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument(
        "words", metavar="key=value", nargs="*", default=[], help="dataset.path=OTHER, or values of launch and loading"
    )
    parser.add_argument("--best", action="store_true", help="the best checkpoint instead of the newest")
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.add_argument("--by-class", action="store_true", help="print a table of the classes, worst first")
    parser.add_argument(
        "-o", "--output", metavar="FOLDER", help="where to write table, plot and gallery (default: RUN)"
    )
    parser.add_argument("--only-present", action="store_true", help="predict only classes that the images have")
    parser.add_argument("--csv", metavar="FILE", help="write label, likeliest classes and loss of every image")
    parser.add_argument("--worst-first", action="store_true", help="sort the images of --csv by falling loss")
    parser.add_argument("--top", type=int, metavar="N", help=f"most classes per image in --csv (default: {_TOP})")


def main(arguments: argparse.Namespace) -> int:
    folder, config, other = _requested(arguments)
    config.task.refuse_flags(vars(arguments), arguments.run)
    _check_csv(arguments)
    devices = decide(replace(config.launch, nproc=1))
    output = Path(arguments.output or folder.path)
    # note: the names in a run folder are the program's own, but for the page
    for name in (_FILES if arguments.output else [_GALLERY]) if arguments.by_class else ():
        check_replaced(output / name)
    from launcher.weights.trained_model import evaluate_run

    top = (arguments.top or _TOP) if arguments.csv else None
    checkpoint = evaluate_run(
        folder, config, devices.kind, best=arguments.best, other=other, with_gallery=arguments.by_class, top=top,
        only_present=arguments.only_present,
    )  # fmt: skip
    for note in checkpoint.notes:
        print(f"note: {note}", file=sys.stderr)
    result, ece = checkpoint.result, checkpoint.details.calibration_error()
    levels = checkpoint.details.accuracy_by_level()
    if arguments.json:
        classes = checkpoint.details.values() if arguments.by_class else {}
        of_calibration = {} if ece is None else {"ece": ece}
        parents = {"parents": levels} if levels else {}
        print_json({"step": checkpoint.step, **vars(result), **of_calibration, **parents, **classes}, indent=None)
    else:
        calibration = "" if ece is None else f"  ECE {ece:.2%}"
        print(f"step {checkpoint.step:,}: {config.task.text(result.metrics)}  loss {result.loss:.4f}{calibration}")
        for level, accuracy in enumerate(levels, 1):
            print(f"top-1 of the classes' parents at level {level}: {accuracy:.2%}")
        print(f"{count_of(result.samples, config.task.sample)}{f' of {other}' if other else ''} on {devices}")
        if arguments.by_class:
            _print(checkpoint)
    if arguments.by_class:
        _write(checkpoint, output, f"{folder.path.name}, step {checkpoint.step:,}")
    if arguments.csv:
        _write_csv(checkpoint, Path(arguments.csv), config, worst=arguments.worst_first)
    return 0


def _requested(arguments: argparse.Namespace) -> tuple[RunFolder, RunConfig, str | None]:
    """Return the run, its config with the changes of the words, and other images if they name some.

    Raises UserError if there is no such run with a checkpoint, or an evaluation cannot change a value.
    """
    folder = existing(arguments.run, saved=True)
    own = read(folder.config)
    config = continued(own, arguments.words, EVALUATION)
    return folder, config, None if config.dataset.path == own.dataset.path else _other(config, folder)


def _check_csv(arguments: argparse.Namespace) -> None:
    """Raise UserError if a file of all images cannot be written."""
    if arguments.csv is None:
        only = {"--worst-first": arguments.worst_first, "--top": arguments.top is not None}
        if lonely := [flag for flag, is_set in only.items() if is_set]:
            raise UserError(*(f"{flag} is for the file of all images; add --csv FILE" for flag in lonely))
        return
    if arguments.top is not None and arguments.top < 1:
        raise UserError(Problem("must be at least 1", "--top", arguments.top))
    check_file(Path(arguments.csv), "--csv")


def _other(config: RunConfig, folder: RunFolder) -> str | None:
    """Return another folder or file to evaluate; None if it is the run's own data set, split for validation."""
    if config.dataset.is_divided and config.dataloader.name in ("torchvision", "features"):
        with suppress(UserError):
            if identity(config, read_skipped(folder.skipped, config.dataset)) in noted_datasets(folder):
                return None
    return str(config.dataset.path)


def _print(checkpoint: CheckpointResult) -> None:
    details = checkpoint.details
    rows = (map(verbatim, details.texts(row)) for row in details.rows())
    console().print(table(*details.heading, numbers=details.heading[1:4], rows=rows))


def _write_csv(checkpoint: CheckpointResult, file: Path, config: RunConfig, *, worst: bool) -> None:
    from launcher.weights.evaluated_images import worst_first, write_csv

    images = worst_first(checkpoint.images) if worst else checkpoint.images
    try:
        write_csv(file, images, config.task.predicted)
    except OSError as error:
        raise UserError(Problem(f"cannot be written: {reason(error, 'pass another')}", "--csv", file)) from None
    print(file, file=sys.stderr)


def _write(checkpoint: CheckpointResult, folder: Path, title: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = checkpoint.details.write(folder, title)
        if checkpoint.gallery:
            page.write(folder / _GALLERY, title, checkpoint.gallery)
            written.append(folder / _GALLERY)
    except OSError as error:
        raise UserError(Problem(f"cannot be written: {reason(error, 'pass another')}", "--output", folder)) from None
    print(*written, sep="\n", file=sys.stderr)
    if RunFolder(folder).exists():
        from launcher.publish.run_page import write_page_or_warn

        write_page_or_warn(RunFolder(folder), partial(print, file=sys.stderr))
