"""`train schema`: print the JSON Schema of a run's config, with all options and their descriptions."""

import argparse
import json

from launcher.config.json_schema import json_schema

EXAMPLES = ["train schema > schema.json"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Take no arguments."""


def main(arguments: argparse.Namespace) -> int:
    print(json.dumps(json_schema(), indent=1))
    return 0
