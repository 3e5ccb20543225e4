"""`train export RUN hub:NAME/MODEL`: publish a run's model on the Hugging Face Hub, with a card for people."""

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

from launcher.cli.export import check_onnx
from launcher.config.choices import HUB
from launcher.console import console, print_json, progress_bars
from launcher.counts import count_of
from launcher.disk import reason
from launcher.errors import UserError
from launcher.records.run_folder import RunFolder, existing
from launcher.weights.hub import repository


def configure(parser: argparse.ArgumentParser) -> None:
    where = f"{HUB}NAME/MODEL, to publish it there, with an ONNX file too if --onnx is set (default: a folder)"
    parser.add_argument("place", metavar="PLACE", nargs="?", help=where)
    parser.add_argument("--public", action="store_true", help="a public repository of the Hub (default: private)")
    parser.add_argument("--dry-run", action="store_true", help="print what would be published, and send nothing")


def handle(arguments: argparse.Namespace) -> int | None:
    """Publish at a place, and return the exit code; None without a place."""
    if arguments.place is not None:
        folder = existing(arguments.run, saved=True)
        check_onnx(arguments)
        return _publish(folder, arguments)
    for flag, is_set in (("--public", arguments.public), ("--dry-run", arguments.dry_run)):
        if is_set:
            raise UserError(f"{flag} is for {HUB}NAME/MODEL; add it, or remove {flag}")
    return None


def _publish(folder: RunFolder, arguments: argparse.Namespace) -> int:
    """Upload the files of a run's model to the Hub, or print them."""
    place = arguments.place
    if not place.startswith(HUB):
        raise UserError(f"{place} is not a place to publish; type {HUB}NAME/MODEL, or -o FOLDER")
    if arguments.output:
        raise UserError(f"--output is for an export to a folder; remove it, or {place}")
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
