"""`train replay RUN step=N`: repeat one step and show where its values stop being finite."""

import argparse
import json

from launcher.console import only_json, print_json
from launcher.errors import DONE, Problem, UserError
from launcher.records.run_folder import existing

EXAMPLES = ["train replay runs/hot-imagenet-1120-1 step=18250"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("step", metavar="step=N", help="the optimizer step, counted from 0 as in the warning")
    parser.add_argument("--json", action="store_true", help="as one JSON object")


def main(arguments: argparse.Namespace) -> int:
    folder = existing(arguments.run)
    number = arguments.step.removeprefix("step=")
    if not number.isdecimal():
        raise UserError(Problem("must be a step number, such as step=18250", "step", number))
    from launcher.launch.start import replay

    with only_json(arguments.json):
        code = replay(folder, int(number))
    if arguments.json and code == DONE:
        print_json(json.loads(folder.replayed(int(number)).read_text(encoding="utf-8")))
    return code
