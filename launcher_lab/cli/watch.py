"""`train watch RUN...`: start TensorBoard on this machine's loopback address for these runs alone."""

import argparse
import os
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from launcher.console import print_json
from launcher.errors import UserError
from launcher.records.run_folder import RunFolder, existing

EXAMPLES = ["train watch runs/mild-imagenet-1120-1", "train watch runs/mild-* runs/hot-*"]
LOOPBACK = "127.0.0.1"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders")
    parser.add_argument("--json", action="store_true", help="the address as one JSON object")


def main(arguments: argparse.Namespace) -> int:
    folders = [existing(name) for name in dict.fromkeys(map(os.path.realpath, arguments.runs))]
    for folder in folders:
        if not any(folder.tensorboard.glob("events.out.tfevents.*")):
            message = "has no files of TensorBoard; wait for the first step, or train with logger=tensorboard"
            raise UserError(f"{folder.path} {message}")
    with tempfile.TemporaryDirectory(prefix="train-watch-") as links:
        _link(folders, Path(links))
        address = _start(links)
        if arguments.json:
            print_json({"address": address, "runs": arguments.runs})
        else:
            print(f"{address}  (Ctrl-C ends it)")
        # note: a program that reads the address waits for it
        print(end="", flush=True)
        threading.Event().wait()
    return 0


def _link(folders: Sequence[RunFolder], links: Path) -> None:
    """Link the event files of each run by its path below the folder that all have in common."""
    common = os.path.commonpath([folder.path.parent for folder in folders])
    for folder in folders:
        (links / str(folder.path.relative_to(common)).replace(os.sep, "-")).symlink_to(folder.tensorboard)


def _start(logdir: str) -> str:
    """Start TensorBoard in a thread on port 6006, or the next that is free, and return its address.

    Raises UserError if no port is free.
    """
    from tensorboard import program

    board = program.TensorBoard()
    board.configure(logdir=logdir, host=LOOPBACK, load_fast="false")
    try:
        return str(board.launch())
    except program.TensorBoardServerException as error:
        raise UserError(f"TensorBoard cannot start: {error}; repeat it when another has ended") from None
