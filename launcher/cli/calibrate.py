"""`train calibrate RUN`: fit a temperature or thresholds, which `predict`, `eval` and `export` use from then on."""

import argparse
import sys
from dataclasses import replace
from typing import Any

from launcher.config.resolved import read
from launcher.console import print_json
from launcher.counts import count_of
from launcher.errors import Problem, UserError, one_line
from launcher.launch.devices import decide
from launcher.records.run_folder import existing
from launcher.weights.fitted import CONFIDENCE, TEMPERATURE, THRESHOLD

EXAMPLES = [
    "train calibrate runs/mild-imagenet-1120-1",
    "train calibrate runs/mild-imagenet-1120-1 --best --json",
    "train calibrate runs/mild-imagenet-1120-1 --precision 0.95",
]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("--best", action="store_true", help="the best checkpoint instead of the newest")
    parser.add_argument(
        "--precision", type=float, metavar="P", help="predict only from the confidence on that has this precision"
    )
    parser.add_argument("--json", action="store_true", help="as one JSON object")


def main(arguments: argparse.Namespace) -> int:
    folder = existing(arguments.run, saved=True)
    config = read(folder.config)
    if not {TEMPERATURE, THRESHOLD}.intersection(config.task.facts):
        message = f"{arguments.run} is task={config.task.name}, which has no temperature; pass a classification"
        raise UserError(message)
    if arguments.precision is not None and not 0 < arguments.precision <= 1:
        raise UserError(Problem("must be above 0 and at most 1", "--precision", arguments.precision))
    device = decide(replace(config.launch, nproc=1)).kind
    from launcher.weights.calibrate import calibrate_run

    values = calibrate_run(folder, config, device, best=arguments.best, precision=arguments.precision)
    if arguments.json:
        print_json({"file": folder.calibration, **values})
        return 0
    of_images = f"of step {values['step']:,}, from {count_of(values['samples'], 'image')}"
    if TEMPERATURE in values:
        print(f"temperature {values[TEMPERATURE]:.4f} {of_images}")
    else:
        print(f"{count_of(len(values[THRESHOLD]), 'threshold')} {of_images}")
    for name in values.get("without", ()):
        print(f"note: {one_line(name)} is never predicted: no threshold has the precision", file=sys.stderr)
    print("  ".join(_change(name, values) for name in values["before"]))
    if CONFIDENCE in values:
        covered = f"precision {values['precision']:.2%} for {values['coverage']:.2%} of the images"
        print(f"least probability {values[CONFIDENCE]:.4f}: {covered}; the others get no class")
    print(folder.calibration)
    return 0


def _change(name: str, values: dict[str, Any]) -> str:
    """Return a value before and after, with its title."""
    title = {"ece": "ECE", "f1": "F1", "macro_f1": "macro F1"}.get(name, name)
    digits = ".4f" if name == "loss" else ".2%"
    return f"{title} {values['before'][name]:{digits}} -> {values['after'][name]:{digits}}"
