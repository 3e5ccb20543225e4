"""`train show`: print the resolved config of a command line, and how Hydra composes it."""

import argparse

from launcher import paths
from launcher.config.compose import Composition, compose
from launcher.config.layers import leaves
from launcher.config.resolved import as_mapping, dump
from launcher.config.yaml_file import as_yaml
from launcher.errors import one_line

EXAMPLES = [
    "train show recipe=hot",
    "train show recipe=mild optimizer.lr=1.0 --origin",
    "train show recipe=hot --cfg",
    "train show recipe=hot_cutmix --info defaults-tree",
]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--origin", action="store_true", help="print the origin of each value, one per line")
    how.add_argument("--cfg", action="store_true", help="print Hydra's config before references are resolved")
    how.add_argument("--info", choices=["defaults-tree"], help="print the tree of config files")
    how.add_argument("--json", action="store_true", help="the config, and the origin of each value, as one JSON object")


def main(arguments: argparse.Namespace) -> int:
    if arguments.cfg or arguments.info:
        _print_composed(arguments.overrides, tree=arguments.info is not None)
        return 0
    composed = arguments.composed or compose(arguments.overrides)
    if arguments.json:
        from launcher.console import print_json

        print_json({"config": as_mapping(composed.config), "origins": composed.origins})
        return 0
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


def _print_composed(words: list[str], *, tree: bool) -> None:
    """Print the composed config, or the tree of config files."""
    from launcher.config.hydra_files import composed, print_defaults_tree

    composition = Composition(words)
    composition.problems.settle()
    with paths.searching(composition.folders):
        if tree:
            print_defaults_tree(composition.primary)
        else:
            print(as_yaml(composed(composition.primary), flow=None), end="")


def _text(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
