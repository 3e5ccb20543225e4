"""`train diff A B`: compare the configs of two recipes or run folders."""

import argparse
from pathlib import Path
from typing import Any

from launcher.config.code import read_only
from launcher.config.compose import compose
from launcher.config.layers import leaves
from launcher.config.overrides import word_of
from launcher.config.resolved import as_mapping, read
from launcher.console import console, print_json, table, verbatim
from launcher.records.run_folder import RunFolder, existing

EXAMPLES = [
    "train diff mild hot",
    "train diff runs/mild-imagenet-1 runs/mild-imagenet-2",
    "train diff hot runs/hot-imagenet-1",
]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("first", metavar="A", help="a recipe's name or a run folder")
    parser.add_argument("second", metavar="B", help="a recipe's name or a run folder")
    parser.add_argument("--json", action="store_true", help="as one JSON list")


def main(arguments: argparse.Namespace) -> int:
    first, second = (_values(name) for name in (arguments.first, arguments.second))
    differing = [key for key in dict.fromkeys([*first, *second]) if first.get(key, "-") != second.get(key, "-")]
    if arguments.json:
        sides = {"first": first, "second": second}
        print_json([{"key": key} | {n: of[key] for n, of in sides.items() if key in of} for key in differing])
        return 0
    rows = [[verbatim(text) for text in (key, first.get(key, "-"), second.get(key, "-"))] for key in differing]
    columns = ("key", verbatim(arguments.first), verbatim(arguments.second))
    console().print(table(*columns, rows=rows) if rows else "no differences")
    return 0


def _values(name: str) -> dict[str, Any]:
    """Return the dotted values of a run folder's or a recipe's config."""
    folder = RunFolder(Path(name))
    if "/" in name and folder.path.suffix not in (".yaml", ".yml"):
        folder = existing(name)
    if folder.exists():
        return dict(leaves(as_mapping(read(folder.config, imports=False))))
    with read_only():
        return dict(leaves(as_mapping(compose([word_of("recipe", name)]).config)))
