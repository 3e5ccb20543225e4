"""`train curve recipe=A,B epochs=... seed=...`: runs the grid of a tradeoff curve here, one run after another."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections import Counter
from types import FrameType

from launcher.cli.console import console, verbatim
from launcher.data.available import with_counts
from launcher.errors import UserError
from launcher.plan.checks import check
from launcher.plan.plan import Plan
from launcher.plan.world import planned_processes
from launcher.study.grid import Cell, check_existing, expand

EXAMPLES = [
    "train curve recipe=baseline,mild,medium epochs=18,36,72 seed=0,1,2 dataset.path=/data/imagenet",
    "train curve recipe=mild model=resnet18 dataset=shapes launch=cpu batch_size=64 epochs=3,6,9 seed=0,1 runs=study",
    "train curve recipe=hot algorithms.sam.interval=5,10 epochs=180,450 dataset.path=/data/imagenet",
]
# Exit codes of a run that was asked to stop, by Ctrl-C or by a signal; docs of launcher.launch.exit_codes.
_STOPPED = (130, 143)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "overrides",
        nargs="+",
        metavar="key=a,b",
        help="values of a run, several where a comma parts them; epochs dilate the recipe's schedule, "
        "unless schedule.dilate is given; what is done is skipped, what was interrupted goes on",
    )


def main(arguments: argparse.Namespace) -> int:
    cells = expand(arguments.overrides)
    _check_all(cells)
    out = console()
    outcomes: Counter[str] = Counter()
    for number, cell in enumerate(cells, 1):
        out.print(f"[bold]{number}/{len(cells)}[/] {verbatim(cell.folder)}")
        state = cell.state
        if state in ("finished", "running"):
            outcomes["done before" if state == "finished" else "running elsewhere"] += 1
            out.print(f"  {state}: left alone")
            continue
        code = _train(["run", *cell.words] if state is None else ["resume", str(cell.folder)])
        if code in _STOPPED:
            out.print("stopped; the same command goes on where this one ended")
            return code
        outcomes["finished" if code == 0 else "failed"] += 1
    out.print(", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()))
    out.print(verbatim(f"see them by: train compare {cells[0].composed.config.runs}"))
    return 1 if outcomes["failed"] else 0


def _check_all(cells: list[Cell]) -> None:
    """See that every run can work before the first one starts.

    Raises:
        UserError: with every mistake, each once.
    """
    problems = []
    for cell in cells:
        try:
            config = with_counts(cell.composed.config, must_exist=True)
            assert config.dataset.train_samples is not None
            check(Plan(config, planned_processes(config), config.dataset.train_samples), cell.composed.origins)
            check_existing(cell, config)
        except UserError as error:
            problems += error.problems
    if problems:
        raise UserError(*dict.fromkeys(problems))


def _train(words: list[str]) -> int:
    """One run in a process of its own, to which a request to stop is passed on; returns its exit code."""
    process = subprocess.Popen([sys.executable, "-m", "launcher.cli.main", *words])

    def pass_on(number: int, frame: FrameType | None) -> None:
        process.send_signal(number)

    # note: a terminal sends Ctrl-C to the run as well, which saves and then ends; this process only waits for it
    before = {signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    before |= {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        return process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
