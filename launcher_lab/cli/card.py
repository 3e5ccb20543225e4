"""`train card RUN`: print the model card of a run in Markdown, with metadata."""

import argparse
from pathlib import Path

from launcher import atomic
from launcher.console import print_json
from launcher.disk import reason
from launcher.errors import Problem, UserError
from launcher.outputs import check_file, with_digest
from launcher.records.run_folder import existing

EXAMPLES = [
    "train card runs/mild-imagenet-1120-1",
    "train card runs/mild-imagenet-1120-1 -o README.md",
]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("-o", "--output", metavar="FILE", help="where to write it (default: standard output)")
    parser.add_argument("--json", action="store_true", help="as one JSON object")


def main(arguments: argparse.Namespace) -> int:
    folder, output = existing(arguments.run), arguments.output and Path(arguments.output)
    if output:
        check_file(output)
    from launcher_lab.study.card import as_text, card

    metadata, body = card(folder)
    if output:
        try:
            atomic.write_text(output, with_digest(as_text(metadata, body)))
        except OSError as error:
            message = f"cannot be written: {reason(error, 'pass another')}"
            raise UserError(Problem(message, "--output", output)) from None
    if arguments.json:
        print_json({"file": output, "metadata": metadata, "text": body})
    else:
        print(output or as_text(metadata, body), end="\n" if output else "")
    return 0
