"""`train resume RUN [key=value ...]`: resume a run from its newest checkpoint."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.cli.listed_runs import listed
from launcher.config.compose import compose
from launcher.console import console, only_json, print_json, verbatim
from launcher.errors import MachineError, UserError, one_line
from launcher.paths import local_path
from launcher.records.metrics import is_finished
from launcher.records.run_folder import RunFolder, check_new, existing, run_folders

if TYPE_CHECKING:
    from launcher.launch.start import Ended

LATEST = "latest"

EXAMPLES = [
    "train resume runs/mild-imagenet-1120-1",
    "train resume",
    "train resume latest epochs=60",
    "train resume runs/mild-imagenet-1120-1 launch.nproc=4",
    "train resume s3://mine/runs/first",
    "train resume runs/mild-imagenet-1120-1 epochs=60 checkpoint.every_minutes=5",
]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", nargs="?", default=LATEST, metavar="RUN", help="a run folder, or its copy in a bucket (default: latest)"
    )
    parser.add_argument(
        "words",
        metavar="key=value",
        nargs="*",
        default=[],
        help="values that may change: length, launch, loading",
    )
    parser.add_argument("--json", action="store_true", help="the run at its end as one JSON object")


def main(arguments: argparse.Namespace) -> int:
    with only_json(arguments.json):
        ended = _resume(arguments)
    if arguments.json:
        print_json(listed(ended.folder))
    return ended.code


def _resume(arguments: argparse.Namespace) -> Ended:
    """Resume the run. Raises UserError if there is none, or a word cannot change."""
    name, words = arguments.run, arguments.words
    if "=" in name and "/" not in name.partition("=")[0] and not RunFolder(Path(name)).exists():
        name, words = LATEST, [name, *words]
    runs = Path(compose([word for word in words if word.startswith("runs=")]).config.runs)
    if name == LATEST and not Path(name).exists():
        name = str(newest_unfinished(runs))
        console().print(verbatim(f"resuming {name}, the newest unfinished run"))
    fetched_from = None
    if "://" in name:
        from launcher.records.mirror import Mirror

        mirror = Mirror(name.rstrip("/"))
        path = _folder_for(runs, name)
        check_new(runs, path.name)
        name, fetched_from = str(mirror.fetch(path).path), mirror.url
        console().print(verbatim(f"{name} is fetched from {mirror.url}"))
    folder = existing(name)
    from launcher.launch.start import resume

    return resume(folder, words, fetched_from=fetched_from)


def newest_unfinished(runs: Path) -> Path:
    """Return the unfinished run folder that was written to last and is not running.

    Raises UserError if there is none.
    """
    for folder in reversed(run_folders(runs)):
        try:
            if folder.exists() and not folder.is_locked() and not is_finished(folder.metrics):
                return folder.path
        except (UserError, MachineError, OSError) as error:
            print(one_line(f"note: skipped: {error}"), file=sys.stderr)
    raise UserError(f"no unfinished run in {runs}; type train resume RUN for a run in another folder")


def _folder_for(runs: Path, url: str) -> Path:
    try:
        return local_path(runs, url.rstrip("/").rpartition("/")[2])
    except ValueError as error:
        raise UserError(f"{url} is not the URL of a run: {error}; type one that ends with the run's name") from None
