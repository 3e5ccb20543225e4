"""`train doctor`: check this machine, with a remedy for each problem."""

import argparse
import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from itertools import chain
from pathlib import Path

from rich.console import Console

from launcher.config.compose import Composed, compose
from launcher.config.schema import RunConfig
from launcher.console import console, print_json, progress_bars, verbatim
from launcher.counts import count_of
from launcher.data.workers import Report
from launcher.doctor.examine import bad_images, examine
from launcher.doctor.machine import Finding, ok, problem
from launcher.errors import DONE, EXIT_USER_ERROR, MachineError, UserError, first_few
from launcher.launch.files_first import note_on_files
from launcher.launch.prepare import prepare
from launcher.records.mirror import mirror_of

EXAMPLES = [
    "train doctor",
    "train doctor recipe=hot dataset.path=/data/imagenet",
    "train doctor --json",
    "train doctor dataset=image_folder dataset.path=/data/mine --list-bad | xargs rm",
]
_COLORS = {"ok": "green", "warning": "yellow", "problem": "red"}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="the run to check the machine for")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="as one JSON list")
    form.add_argument("--list-bad", action="store_true", help="only files that cannot be decoded, quoted for xargs rm")


def main(arguments: argparse.Namespace) -> int:
    findings, composed = [], arguments.composed or compose(arguments.overrides)
    if arguments.list_bad:
        return _list_bad(composed.config)
    with progress_bars(console(sys.stderr if arguments.json else None)) as (out, report):
        config = composed.config
        for finding in chain(examine(config, report), examine_mirror(config), _examine_loader(composed, report)):
            findings.append(finding)
            if not arguments.json:
                _show(finding, out)
    if arguments.json:
        print_json([asdict(finding) for finding in findings])
    return EXIT_USER_ERROR if any(finding.status == "problem" for finding in findings) else 0


def examine_mirror(config: RunConfig) -> Iterator[Finding]:
    """Connect to the mirror as a run does at its start, which writes nothing."""
    try:
        mirror = mirror_of(config, config.run_name or "")
    except UserError as error:
        yield from (problem("mirror", f"{wrong.key}={wrong.value}", wrong.message) for wrong in error.problems)
        return
    if mirror is not None:
        has = "has this run, which the same command resumes" if mirror.exists else "can be reached; nothing was written"
        yield ok("mirror", f"{mirror.url} {has}")


def _examine_loader(composed: Composed, report: Report) -> Iterator[Finding]:
    """Yield the note of a new run on its FFCV files; nothing if it has none or cannot start."""
    with suppress(UserError, MachineError):  # note: the other findings have the reason
        for note in note_on_files(composed, prepare(composed, is_new=False, weights=False, report=report).plan):
            yield ok("data loader", note)


def _list_bad(config: RunConfig) -> int:
    """Print the paths of images that cannot be decoded, each once; what cannot be removed, as notes."""
    with progress_bars(console(sys.stderr)) as (_, report):
        bad = bad_images(config, report)
    files = dict.fromkeys(piece.file for piece in bad if piece.size is None)
    missing = [file for file in files if not Path(file).exists()]
    for file in files:
        if file not in missing:
            print(shlex.quote(file))
    if missing:
        print(f"note: {count_of(len(missing), 'image')} of a table missing: {first_few(missing)}", file=sys.stderr)
    if inside := [str(piece) for piece in bad if piece.size is not None]:
        print(
            f"note: {count_of(len(inside), 'image')} in archives cannot be decoded: {first_few(inside)}",
            file=sys.stderr,
        )
    return DONE


def _show(finding: Finding, out: Console) -> None:
    """Print one finding at once, since the next may take seconds."""
    advice = f"; {finding.advice}" if finding.advice else ""
    color = _COLORS[finding.status]
    text = verbatim(finding.observation + advice)
    out.print(f"[{color}]{finding.status:8}[/] [bold]{finding.name:14}[/] {text}")
