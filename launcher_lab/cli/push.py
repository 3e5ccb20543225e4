"""`train push RUN hub:NAME/MODEL`: publish a run's model with its card on the Hugging Face Hub, or in a folder."""

import argparse
import sys
import tempfile
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.config.choices import HUB
from launcher.console import console, print_json, progress_bars
from launcher.counts import count_of
from launcher.disk import reason
from launcher.errors import Problem, UserError
from launcher.installation import how_to_add
from launcher.outputs import check_folder, check_replaced
from launcher.records.run_folder import RunFolder, existing

if TYPE_CHECKING:
    from launcher_lab.publish.files import Published

EXAMPLES = [
    "train push runs/mild-imagenet-1120-1 hub:me/mild --dry-run",
    "train push runs/mild-imagenet-1120-1 hub:me/mild --public",
    "train push runs/mild-imagenet-1120-1 folder:models/mild --onnx --best",
]
_FOLDER = "folder:"
_ONNX = ("onnx", "onnxscript", "onnxruntime")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("place", metavar="PLACE", help=f"{HUB}NAME/MODEL, or {_FOLDER}PATH")
    parser.add_argument("--public", action="store_true", help="a public repository (default: private)")
    parser.add_argument("--best", action="store_true", help="the best checkpoint instead of the newest")
    parser.add_argument("--onnx", action="store_true", help="with an ONNX file too, in onnx/")
    parser.add_argument("--dry-run", action="store_true", help="print what would be published, and send nothing")
    parser.add_argument("--json", action="store_true", help="as one JSON object")


def main(arguments: argparse.Namespace) -> int:
    folder, place = existing(arguments.run, saved=True), arguments.place
    _check(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix=".push-", dir=_staging(place)) as staging:
            staged = Path(staging) / "model"
            published = _write(folder, staged, arguments)
            address = None if arguments.dry_run else _publish(staged, folder, arguments)
    except OSError as error:
        message = f"cannot be written: {reason(error, 'choose another folder')}"
        raise UserError(Problem(message, "place", place)) from None
    _show(published, address, arguments)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Raise UserError for a place or a flag that cannot work, before seconds of export."""
    place = arguments.place
    if arguments.onnx and (missing := [name for name in _ONNX if find_spec(name) is None]):
        raise UserError(f"--onnx needs {' and '.join(missing)}; run {how_to_add('onnx')}")
    if place.startswith(_FOLDER):
        if arguments.public:
            raise UserError(f"--public is for {HUB}NAME/MODEL; remove it")
        if not place.removeprefix(_FOLDER) or (Path(place.removeprefix(_FOLDER)) / "config.yaml").exists():
            raise UserError(Problem("is not a folder for a model; pass another", "place", place))
        folder = Path(place.removeprefix(_FOLDER))
        for path in (folder, folder / "onnx"):
            check_folder(path, "place", "pass another folder")
        check_replaced(folder / "README.md", "place", "pass another folder")
        return
    from launcher.weights.hub import repository
    from launcher_lab.publish.upload import check_repository

    if not place.startswith(HUB):
        raise UserError(f"{place} is not a place to publish; type {HUB}NAME/MODEL or {_FOLDER}PATH")
    repository(place)
    if not arguments.dry_run:
        check_repository(place, public=arguments.public)


def _staging(place: str) -> Path | None:
    """Return where to write first: beside the folder, so that files can be renamed; None for the system's place."""
    if not place.startswith(_FOLDER):
        return None
    parent = Path(place.removeprefix(_FOLDER)).absolute().parent
    return next(path for path in (parent, *parent.parents) if path.is_dir())


def _write(folder: RunFolder, staged: Path, arguments: argparse.Namespace) -> "Published":
    from launcher_lab.publish.files import write_files

    place, path = arguments.place, Path(arguments.place.removeprefix(_FOLDER))
    # note: a model card has no paths of this machine
    names = (path.name, f"local-dir:{path.name}")
    if place.startswith(HUB):
        names = (place, f"hf-hub:{place.removeprefix(HUB)}")
    with progress_bars(console(sys.stderr)) as (_, report):
        show = partial(report, "checking the export")
        return write_files(folder, staged, *names, best=arguments.best, onnx=arguments.onnx, report=show)


def _publish(staged: Path, folder: RunFolder, arguments: argparse.Namespace) -> str:
    """Upload or move the files, and return where they are."""
    place = arguments.place
    if place.startswith(HUB):
        from launcher_lab.publish.upload import upload

        return upload(staged, place, public=arguments.public, message=f"Publish {folder.path.name}")
    output = Path(place.removeprefix(_FOLDER))
    for path in sorted(path for path in staged.rglob("*") if path.is_file()):
        target = output / path.relative_to(staged)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)
    return str(output)


def _show(published: "Published", address: str | None, arguments: argparse.Namespace) -> None:
    if arguments.json:
        files = [{"file": name, "bytes": size} for name, size in published.files.items()]
        kind = {"public": arguments.public} if arguments.place.startswith(HUB) else {}
        print_json({"place": arguments.place, **kind, "address": address, "timm": published.timm, "files": files})
        return
    visibility = ""
    if arguments.place.startswith(HUB):
        visibility = ", public" if arguments.public else ", private"
    if arguments.dry_run:
        for name, size in published.files.items():
            print(f"{size:12,}  {name}")
        print(f"{count_of(len(published.files), 'file')} for {arguments.place}{visibility}; nothing was sent")
    else:
        print(address)
    if not published.timm:
        print("note: timm has no equal network; load it by model.py of these files", file=sys.stderr)
