"""`train export RUN`: write the weights as safetensors, a model card, and a module that rebuilds the network.

`train export RUN hub:NAME/MODEL` publishes them on the Hugging Face Hub, with a card for people.
"""

import argparse
import json
import sys
import tempfile
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from launcher import power_averages
from launcher.config.choices import HUB
from launcher.config.resolved import read
from launcher.console import console, print_json, progress_bars
from launcher.counts import count_of
from launcher.disk import patiently, reason
from launcher.errors import Problem, UserError
from launcher.installation import how_to_add
from launcher.outputs import check_folder
from launcher.records.run_folder import RunFolder, existing
from launcher.weights.card import CARD, ONNX, WEIGHTS
from launcher.weights.fitted import notes
from launcher.weights.hub import repository

EXAMPLES = [
    "train export runs/mild-imagenet-1120-1",
    "train export runs/mild-imagenet-1120-1 -o models/mild",
    "train export runs/mild-imagenet-1120-1 --onnx",
    "train export runs/mild-imagenet-1120-1 hub:me/mild --dry-run",
    "train export runs/mild-imagenet-1120-1 hub:me/mild --public",
    "train export runs/mild-imagenet-1120-1 --ema-length 0.05",
]
_ONNX = ("onnx", "onnxscript", "onnxruntime")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")
    where = f"{HUB}NAME/MODEL, to publish it there, with an ONNX file too if --onnx is set (default: a folder)"
    parser.add_argument("place", metavar="PLACE", nargs="?", help=where)
    parser.add_argument("--public", action="store_true", help="a public repository of the Hub (default: private)")
    parser.add_argument("--dry-run", action="store_true", help="print what would be published, and send nothing")
    parser.add_argument(
        "--ema-length", metavar="X", help="the moving average of this length, from algorithms.ema.snapshots"
    )
    parser.add_argument("--best", action="store_true", help="the best checkpoint instead of the newest")
    parser.add_argument("-o", "--output", metavar="FOLDER", help="default: RUN/export, or RUN/onnx with --onnx")
    parser.add_argument("--onnx", action="store_true", help="export to ONNX, for onnxruntime and other runtimes")
    parser.add_argument("--json", action="store_true", help="as one JSON object")


def main(arguments: argparse.Namespace) -> int:
    folder = existing(arguments.run, saved=True)
    if arguments.onnx and (missing := [name for name in _ONNX if find_spec(name) is None]):
        raise UserError(f"--onnx needs {' and '.join(missing)}; run {how_to_add('onnx')}")
    if arguments.place is not None:
        return _publish(folder, arguments)
    for flag, is_set in (("--public", arguments.public), ("--dry-run", arguments.dry_run)):
        if is_set:
            raise UserError(f"{flag} is for {HUB}NAME/MODEL; add it, or remove {flag}")
    lengths = power_averages.lengths_of(arguments.ema_length, "--ema-length") if arguments.ema_length else [None]
    if len(lengths) > 1:
        raise UserError(Problem("exports one length; omit the others", "--ema-length", arguments.ema_length))
    output = Path(arguments.output or folder.path / ("onnx" if arguments.onnx else "export"))
    check_folder(output)
    from launcher.weights.export import export_run

    with progress_bars(console(sys.stderr)) as (_, report):
        show = partial(report, "checking the export")
        options = {"best": arguments.best, "onnx": arguments.onnx, "ema_length": lengths[0]}
        checked = export_run(folder, output, report=show, **options)
    primary = read(folder.config).task.primary
    result = "same logits as the run" if checked.value is None else f"{primary.title} {primary.text(checked.value)}"
    path, file = output / CARD, output / (ONNX if arguments.onnx else WEIGHTS)
    card = json.loads(patiently(path.read_bytes, path))
    print(f"checked without this project: {result} on {checked.images:,} {checked.on}", file=sys.stderr)
    of_fit = notes(card["task"], card["step"], folder if lengths[0] is None else None)
    for note in (*of_fit, *power_averages.notes(card["average"])):
        print(f"note: {note}", file=sys.stderr)
    if arguments.json:
        print_json({"folder": output, "file": file, "checked": vars(checked)})
    else:
        print(file)
    return 0


def _publish(folder: RunFolder, arguments: argparse.Namespace) -> int:
    """Upload the files of a run's model to the Hub, or print them."""
    place = arguments.place
    if not place.startswith(HUB):
        raise UserError(f"{place} is not a place to publish; type {HUB}NAME/MODEL, or -o FOLDER")
    for flag, is_set in (("--output", arguments.output), ("--ema-length", arguments.ema_length)):
        if is_set:
            raise UserError(f"{flag} is for an export to a folder; remove it, or {place}")
    repository(place)
    from launcher_lab.publish.files import write_files
    from launcher_lab.publish.upload import check_repository, upload

    if not arguments.dry_run:
        check_repository(place, public=arguments.public)
    address = None
    try:
        with tempfile.TemporaryDirectory(prefix=".publish-") as staging:
            staged = Path(staging) / "model"
            with progress_bars(console(sys.stderr)) as (_, report):
                show = partial(report, "checking the export")
                options = {"best": arguments.best, "onnx": arguments.onnx}
                published = write_files(folder, staged, place, report=show, **options)
            if not arguments.dry_run:
                address = upload(staged, place, public=arguments.public, message=f"Publish {folder.path.name}")
    except OSError as error:
        raise UserError(f"a temporary file cannot be written: {reason(error)}; set TMPDIR to another folder") from None
    if arguments.json:
        files = [{"file": name, "bytes": size} for name, size in published.files.items()]
        facts = {"place": place, "public": arguments.public, "address": address}
        print_json({**facts, "timm": published.timm, "files": files})
    elif arguments.dry_run:
        for file, size in published.files.items():
            print(f"{size:12,}  {file}")
        visibility = "public" if arguments.public else "private"
        print(f"{count_of(len(published.files), 'file')} for {place}, {visibility}; nothing was sent")
    else:
        print(address)
    if not published.timm and not arguments.json:
        print("note: timm has no equal network; load it by model.py of these files", file=sys.stderr)
    return 0
