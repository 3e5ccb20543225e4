"""`train watch RUN...`: serve a page of running runs on this machine's loopback address, from metrics.jsonl alone."""

import argparse
from pathlib import Path

from launcher.console import print_json
from launcher.errors import Problem, UserError
from launcher_lab.study.live.server import LOOPBACK, server

EXAMPLES = [
    "train watch runs/mild-imagenet-1120-1",
    "train watch runs/mild-* runs/hot-* --port 8080",
    "train watch /mnt/server/runs/mild-imagenet-1120-1",
]
_LAST_PORT = 65_535


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folders with a metrics.jsonl, also on another machine")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="the port (default: any that is free)")
    parser.add_argument("--json", action="store_true", help="the address as one JSON object")


def main(arguments: argparse.Namespace) -> int:
    if not 0 <= arguments.port <= _LAST_PORT:
        raise UserError(Problem(f"must be from 0 to {_LAST_PORT:,}", "--port", arguments.port))
    folders = [Path(name) for name in arguments.runs]
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder} is no folder; pass run folders, such as train watch runs/mild-imagenet-1120-1")
    try:
        watched = server(folders, arguments.port)
    except OSError as error:
        raise UserError(Problem(f"cannot be used: {error.strerror}; omit it", "--port", arguments.port)) from None
    with watched:
        address = f"http://{LOOPBACK}:{watched.server_port}/"
        if arguments.json:
            print_json({"address": address, "runs": folders})
        else:
            print(f"{address}  (Ctrl-C ends it)")
        # note: a program that reads the address waits for it
        print(end="", flush=True)
        watched.serve_forever()
    return 0
