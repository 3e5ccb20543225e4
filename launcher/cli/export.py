"""`train export RUN`: write the weights as safetensors, or an ONNX program, with a model card."""

import argparse
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from launcher.config.choices import HUB
from launcher.config.resolved import read
from launcher.console import console, print_json, progress_bars
from launcher.errors import UserError
from launcher.files.outputs import check_folder
from launcher.installation import how_to_add
from launcher.records.run_folder import existing
from launcher.weights.card import ONNX, WEIGHTS

EXAMPLES = [
    "train export runs/mild-imagenet-1120-1",
    "train export runs/mild-imagenet-1120-1 -o models/mild",
    "train export runs/mild-imagenet-1120-1 --onnx",
    "train export runs/mild-imagenet-1120-1 hub:me/mild --dry-run",
    "train export runs/mild-imagenet-1120-1 hub:me/mild --public",
]
_ONNX = ("onnx", "onnxscript", "onnxruntime")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("--best", action="store_true", help="the best checkpoint instead of the newest")
    parser.add_argument("-o", "--output", metavar="FOLDER", help="default: RUN/export, or RUN/onnx with --onnx")
    parser.add_argument("--onnx", action="store_true", help="an ONNX program: uint8 images in, averaged logits out")
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    where = f"{HUB}NAME/MODEL, to publish it there, with an ONNX file too if --onnx is set (default: a folder)"
    parser.add_argument("place", metavar="PLACE", nargs="?", help=where)
    parser.add_argument("--public", action="store_true", help="a public repository of the Hub (default: private)")
    parser.add_argument("--dry-run", action="store_true", help="print what would be published, and send nothing")


def main(arguments: argparse.Namespace) -> int:
    if arguments.place is None:
        for flag, is_set in (("--public", arguments.public), ("--dry-run", arguments.dry_run)):
            if is_set:
                raise UserError(f"{flag} is for {HUB}NAME/MODEL; add it, or remove {flag}")
    folder = existing(arguments.run, saved=True)
    _check_onnx(arguments)
    if arguments.place is not None:
        from launcher.cli.publish import publish

        return publish(folder, arguments)
    output = Path(arguments.output or folder.path / ("onnx" if arguments.onnx else "export"))
    check_folder(output)
    from launcher.weights.export import export_run

    with progress_bars(console(sys.stderr)) as (_, report):
        show = partial(report, "checking the export")
        checked = export_run(folder, output, best=arguments.best, report=show, onnx=arguments.onnx)
    primary = read(folder.config).task.primary
    result = "same logits as the run" if checked.value is None else f"{primary.title} {primary.text(checked.value)}"
    file = output / (ONNX if arguments.onnx else WEIGHTS)
    where = " without this project" if arguments.onnx else ""
    print(f"checked{where}: {result} on {checked.images:,} {checked.on}", file=sys.stderr)
    if arguments.json:
        print_json({"folder": output, "file": file, "checked": vars(checked)})
    else:
        print(file)
    return 0


def _check_onnx(arguments: argparse.Namespace) -> None:
    """Raise UserError if `--onnx` lacks a package."""
    if arguments.onnx and (missing := [name for name in _ONNX if find_spec(name) is None]):
        raise UserError(f"--onnx needs {' and '.join(missing)}; run {how_to_add(*missing)}")
