"""`train show`: the resolved config of a command line."""

from __future__ import annotations

import argparse

from launcher.config.compose import compose
from launcher.config.layers import leaves
from launcher.config.resolved import as_mapping, dump
from launcher.errors import one_line

EXAMPLES = [
    "train show recipe=hot",
    "train show recipe=mild optimizer.lr=1.0 --origin",
]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--origin", action="store_true", help="where each value came from, one a line")


def main(arguments: argparse.Namespace) -> int:
    composed = compose(arguments.overrides)
    if not arguments.origin:
        print(dump(composed.config), end="")
        return 0
    rows = [
        (f"{key}={_text(value)}", composed.origins.get(key, "")) for key, value in leaves(as_mapping(composed.config))
    ]
    width = max(len(text) for text, _ in rows)
    for text, origin in rows:
        print(one_line(f"{text:{width}}  {origin}"))
    return 0


def _text(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
