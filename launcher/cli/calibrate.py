"""`train calibrate RUN`: fit a temperature, which `predict`, `eval` and `export` of the run use from then on."""

import argparse
from dataclasses import replace

from launcher.config.resolved import read
from launcher.console import print_json
from launcher.counts import count_of
from launcher.errors import UserError
from launcher.launch.devices import decide
from launcher.records.run_folder import existing
from launcher.weights.temperature import FACT

EXAMPLES = [
    "train calibrate runs/mild-imagenet-1120-1",
    "train calibrate runs/mild-imagenet-1120-1 --best --json",
]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("--best", action="store_true", help="the best checkpoint instead of the newest")
    parser.add_argument("--json", action="store_true", help="as one JSON object")


def main(arguments: argparse.Namespace) -> int:
    folder = existing(arguments.run, saved=True)
    config = read(folder.config)
    if FACT not in config.task.facts:
        message = f"{arguments.run} is task={config.task.name}, which has no temperature; pass a classification"
        raise UserError(message)
    device = decide(replace(config.launch, nproc=1)).kind
    from launcher.weights.calibrate import calibrate_run

    values = calibrate_run(folder, config, device, best=arguments.best)
    if arguments.json:
        print_json({"file": folder.calibration, **values})
        return 0
    before, after = values["before"], values["after"]
    print(f"temperature {values[FACT]:.4f} of step {values['step']:,}, from {count_of(values['samples'], 'image')}")
    print(f"loss {before['loss']:.4f} -> {after['loss']:.4f}  ECE {before['ece']:.2%} -> {after['ece']:.2%}")
    print(folder.calibration)
    return 0
