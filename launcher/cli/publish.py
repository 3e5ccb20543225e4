"""`train export RUN hub:NAME/MODEL`: publish a run's model on the Hugging Face Hub, with a card for people."""

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

from launcher.config.choices import HUB
from launcher.console import console, print_json, progress_bars
from launcher.counts import count_of
from launcher.errors import UserError
from launcher.files.disk import reason
from launcher.records.run_folder import RunFolder
from launcher.weights.hub import repository


def publish(folder: RunFolder, arguments: argparse.Namespace) -> int:
    """Upload the files of a run's model to the Hub, or print them."""
    place = arguments.place
    if not place.startswith(HUB):
        raise UserError(f"{place} is not a place to publish; type {HUB}NAME/MODEL, or -o FOLDER")
    if arguments.output:
        raise UserError(f"--output is for an export to a folder; remove it, or {place}")
    repository(place)
    from launcher.publish.files import write_files
    from launcher.publish.upload import check_repository, upload

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
        print("note: timm has no equal network; train, or an ONNX file (--onnx), runs it", file=sys.stderr)
    return 0
