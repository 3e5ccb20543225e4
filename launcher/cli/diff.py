"""`train diff A B`: what differs between two recipes or run folders."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.table import Table

from launcher.config.compose import compose
from launcher.config.layers import leaves
from launcher.config.overrides import word_of
from launcher.config.resolved import as_mapping, read
from launcher.console import console, verbatim
from launcher.records.folder import RunFolder

EXAMPLES = [
    "train diff mild hot",
    "train diff runs/mild-imagenet-1 runs/mild-imagenet-2",
    "train diff hot runs/hot-imagenet-1",
]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("first", metavar="A", help="a recipe's name or a run folder")
    parser.add_argument("second", metavar="B", help="a recipe's name or a run folder")


def main(arguments: argparse.Namespace) -> int:
    first, second = (_values(name) for name in (arguments.first, arguments.second))
    table = Table(
        "key", verbatim(arguments.first), verbatim(arguments.second), box=None, pad_edge=False, header_style="bold"
    )
    for key in dict.fromkeys([*first, *second]):
        if first.get(key, "-") != second.get(key, "-"):
            table.add_row(verbatim(key), verbatim(first.get(key, "-")), verbatim(second.get(key, "-")))
    out = console()
    if table.row_count:
        out.print(table)
    else:
        out.print("no difference")
    return 0


def _values(name: str) -> dict[str, Any]:
    """Dotted values of a run folder's config, or of a recipe's."""
    folder = RunFolder(Path(name))
    config = read(folder.config) if folder.exists() else compose([word_of("recipe", name)]).config
    return dict(leaves(as_mapping(config)))
