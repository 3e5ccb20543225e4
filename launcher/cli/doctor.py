"""`train doctor`: check this machine, with a remedy for each problem."""

import argparse
import json
import sys
from dataclasses import asdict

from rich.console import Console

from launcher.config.compose import compose
from launcher.console import console, progress_bars, verbatim
from launcher.doctor.examine import examine
from launcher.doctor.machine import Finding
from launcher.errors import EXIT_USER_ERROR

EXAMPLES = ["train doctor", "train doctor recipe=hot dataset.path=/data/imagenet", "train doctor --json"]
_COLORS = {"ok": "green", "warning": "yellow", "problem": "red"}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="the run to check the machine for")
    parser.add_argument("--json", action="store_true", help="as one JSON list")


def main(arguments: argparse.Namespace) -> int:
    findings, config = [], compose(arguments.overrides).config
    with progress_bars(console(sys.stderr if arguments.json else None)) as (out, report):
        for finding in examine(config, report):
            findings.append(finding)
            if not arguments.json:
                _show(finding, out)
    if arguments.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    return EXIT_USER_ERROR if any(finding.status == "problem" for finding in findings) else 0


def _show(finding: Finding, out: Console) -> None:
    """Print one finding at once, since the next may take seconds."""
    advice = f"; {finding.advice}" if finding.advice else ""
    color = _COLORS[finding.status]
    text = verbatim(finding.observation + advice)
    out.print(f"[{color}]{finding.status:8}[/] [bold]{finding.name:14}[/] {text}")
